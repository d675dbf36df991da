"""The gRPC door of unary inference: bytes in, bytes out.

One slotted object a request: it is the queue's item itself.
"""

from collections.abc import Callable, Hashable
from typing import Final

from services.core.completion_queue import (
    NativeCall,
    NativeMetadata,
    UnaryCall,
)
from services.router.inference import Inference
from services.router.route_scheduler import RouteScheduler

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
        self.scheduler: RouteScheduler | None = None
        super().__init__(call, method, metadata)

    def received(self, message: bytes) -> None:
        """Submit the request."""
        self._inference.submit(self, message)

    def cancelled(self) -> None:
        """Leave the queue: nobody waits for the answer any more."""
        if self.scheduler is not None:
            self.scheduler.forget(self)


def infer_calls(
    inference: Inference,
) -> Callable[[NativeCall, str, NativeMetadata], InferCall]:
    """Return the factory of ModelInfer calls."""

    def accept(call: NativeCall, method: str, metadata: NativeMetadata) -> InferCall:
        return InferCall(call, method, metadata, inference)

    return accept
