"""The streaming door: many requests in flight on one ModelStreamInfer call.

An error belongs to its request: it is a message on the stream, which stays open.
With metadata ``triton_grpc_error: true`` the first error ends the stream with its
status instead. Source: Triton's gRPC frontend, "ModelStreamInfer".
"""

from collections.abc import Callable, Hashable
from typing import Final

from google.protobuf.message import DecodeError

from protos import inference_pb2 as pb
from services.core.completion_queue import (
    NativeCall,
    NativeMetadata,
    StreamCall,
    metadata_values,
)
from services.core.errors import ServingError
from services.core.wire_format import length_prefix
from services.router.header_forwarding import NO_FORWARDING, HeaderForwarding
from services.router.inference import Inference
from services.router.pending_request import Taker, refuse

STREAM_INFER_METHOD: Final = "/inference.GRPCInferenceService/ModelStreamInfer"

_GRPC_ERROR_KEY: Final = "triton_grpc_error"
_INFER_RESPONSE_FIELD: Final = 2
# Appended to a serialized response it adds the parameter: protobuf merges.
_FINAL_RESPONSE: Final = pb.ModelInferResponse(
    parameters={"triton_final_response": pb.InferParameter(bool_param=True)}
).SerializeToString()
# A client that sends without reading is not read from either.
_MOST_IN_FLIGHT: Final = 1024


class StreamedRequest:
    """One request of a stream, waiting for its answer."""

    __slots__ = (
        "_stream",
        "attempts",
        "body",
        "enqueued_ns",
        "open",
        "priority",
        "rows",
        "scheduler",
        "shape_key",
        "timeout_ns",
    )

    rows: int
    shape_key: Hashable
    enqueued_ns: int
    priority: int
    timeout_ns: int
    attempts: int

    def __init__(self, stream: "StreamInferCall", body: bytes) -> None:
        """Belong to ``stream``."""
        self._stream = stream
        self.body = body
        self.open = True
        self.scheduler: Taker | None = None

    @property
    def metadata(self) -> NativeMetadata:
        """Of its stream."""
        return self._stream.metadata

    def answer(self, message: bytes) -> None:
        """Send the response, marked as the only one."""
        if self.open:
            self.open = False
            prefix = length_prefix(
                _INFER_RESPONSE_FIELD, len(message) + len(_FINAL_RESPONSE)
            )
            self._stream.answered(self, b"".join((prefix, message, _FINAL_RESPONSE)))

    def fail(self, code: int, details: str) -> None:
        """Send the error, with the id of the request."""
        if self.open:
            self.open = False
            self._stream.failed(self, code, details)


class StreamInferCall(StreamCall):
    """One ModelStreamInfer call."""

    __slots__ = (
        "_ends_on_error",
        "_forwarding",
        "_half_closed",
        "_inference",
        "_pending",
        "_reading",
    )

    def __init__(
        self,
        call: NativeCall,
        method: str,
        metadata: NativeMetadata,
        inference: Inference,
        forwarding: HeaderForwarding,
    ) -> None:
        """Take over a call and hand its requests to ``inference``."""
        super().__init__(call, method, metadata)
        self._inference = inference
        self._forwarding = forwarding
        self._pending: set[StreamedRequest] = set()
        self._half_closed = False
        wish = metadata_values(metadata).get(_GRPC_ERROR_KEY, "")
        self._ends_on_error = wish == "true"
        self._reading = True
        self.read()

    def received(self, message: bytes) -> None:
        """Submit one request and read the next."""
        request = StreamedRequest(self, message)
        self._pending.add(request)
        self._reading = False
        self._submit(request, message)
        self._read_on()

    def _submit(self, request: StreamedRequest, body: bytes) -> None:
        if self._forwarding.is_on:
            try:
                body = self._forwarding.forward(metadata_values(self.metadata), body)
            except ServingError as error:
                refuse(request, error)
                return
        self._inference.submit(request, body)

    def half_closed(self) -> None:
        """End the call as soon as everything is answered."""
        self._half_closed = True
        self._finish_if_done()

    def cancelled(self) -> None:
        """Leave all queues: nobody waits for the answers any more."""
        pending, self._pending = self._pending, set()
        for request in pending:
            request.open = False
            if request.scheduler is not None:
                request.scheduler.forget(request)

    def answered(self, request: StreamedRequest, message: bytes) -> None:
        """Send ``message``, a serialized ModelStreamInferResponse."""
        self._pending.discard(request)
        self.send(message)
        self._read_on()
        self._finish_if_done()

    def failed(self, request: StreamedRequest, code: int, details: str) -> None:
        """Tell the client that ``request`` failed."""
        if self._ends_on_error:
            self._pending.discard(request)
            self.finish(code, details)
            self.cancelled()
            return
        response = pb.ModelStreamInferResponse(
            error_message=details,
            infer_response=pb.ModelInferResponse(id=_id_of(request.body)),
        )
        self.answered(request, response.SerializeToString())

    def _read_on(self) -> None:
        room = len(self._pending) + self.unsent < _MOST_IN_FLIGHT
        if room and self.open and not (self._reading or self._half_closed):
            self._reading = True
            self.read()

    def sent_all(self) -> None:
        """Read on if the client's slowness had stopped us."""
        self._read_on()

    def _finish_if_done(self) -> None:
        if self._half_closed and not self._pending:
            self.finish()


def _id_of(body: bytes) -> str:
    try:
        return pb.ModelInferRequest.FromString(body).id
    except DecodeError:
        return ""


def stream_infer_calls(
    inference: Inference, forwarding: HeaderForwarding = NO_FORWARDING
) -> Callable[[NativeCall, str, NativeMetadata], StreamInferCall]:
    """Return the factory of ModelStreamInfer calls."""

    def accept(
        call: NativeCall, method: str, metadata: NativeMetadata
    ) -> StreamInferCall:
        return StreamInferCall(call, method, metadata, inference, forwarding)

    return accept
