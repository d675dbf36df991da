"""The gRPC door of unary inference: bytes in, bytes out.

One slotted object a request: it is the queue's item itself.
"""

from collections.abc import Callable, Hashable
from typing import Final

from services.core.completion_queue import (
    Metadata,
    NativeCall,
    NativeMetadata,
    UnaryCall,
    metadata_values,
)
from services.core.errors import ServingError
from services.router.header_forwarding import NO_FORWARDING, HeaderForwarding
from services.router.inference import Inference
from services.router.pending_request import Taker, refuse
from services.router.retry_hint import grpc_hint

INFER_METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"


class InferCall(UnaryCall):
    """One ModelInfer call, from its arrival to its answer."""

    __slots__ = (
        "_inference",
        "attempts",
        "body",
        "enqueued_ns",
        "priority",
        "rows",
        "scheduler",
        "shape_key",
        "timeout_ns",
    )

    watches_at_once = False
    body: bytes
    rows: int
    shape_key: Hashable
    enqueued_ns: int
    priority: int
    timeout_ns: int
    attempts: int

    def __init__(
        self,
        call: NativeCall,
        method: str,
        metadata: NativeMetadata,
        inference: Inference,
    ) -> None:
        """Take over a call and hand it to ``inference`` when its body is here."""
        self._inference = inference
        self.scheduler: Taker | None = None
        # Hot: ``super()`` would make an object first.
        UnaryCall.__init__(self, call, method, metadata)

    def received(self, message: bytes) -> None:
        """Hand in the request."""
        self.body = message
        self._inference.arrive(self)

    def fail(self, code: int, details: str, metadata: Metadata | None = None) -> None:
        """End the call with an error, and a hint if it is worth another try."""
        super().fail(code, details, metadata or grpc_hint(code, details))

    def cancelled(self) -> None:
        """Leave the queue: nobody waits for the answer any more."""
        if self.scheduler is not None:
            self.scheduler.forget(self)


class ForwardingInferCall(InferCall):
    """The same, with some of its headers as parameters."""

    __slots__ = ("_forwarding",)

    def __init__(
        self,
        call: NativeCall,
        method: str,
        metadata: NativeMetadata,
        inference: Inference,
        forwarding: HeaderForwarding,
    ) -> None:
        """Take over a call; ``forwarding`` chooses the headers."""
        self._forwarding = forwarding
        super().__init__(call, method, metadata, inference)

    def received(self, message: bytes) -> None:
        """Submit the request with its headers."""
        try:
            body = self._forwarding.forward(metadata_values(self.metadata), message)
        except ServingError as error:
            refuse(self, error)
            return
        super().received(body)


def infer_calls(
    inference: Inference, forwarding: HeaderForwarding = NO_FORWARDING
) -> Callable[[NativeCall, str, NativeMetadata], InferCall]:
    """Return the factory of ModelInfer calls."""

    def accept(call: NativeCall, method: str, metadata: NativeMetadata) -> InferCall:
        return InferCall(call, method, metadata, inference)

    def accept_forwarding(
        call: NativeCall, method: str, metadata: NativeMetadata
    ) -> InferCall:
        return ForwardingInferCall(call, method, metadata, inference, forwarding)

    return accept_forwarding if forwarding.is_on else accept
