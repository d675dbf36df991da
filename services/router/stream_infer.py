"""The streaming door: many requests in flight on one ModelStreamInfer call.

An error belongs to its request: it is a message on the stream, which stays open.
With metadata ``triton_grpc_error: true`` the first error ends the stream with its
status instead. Source: Triton's gRPC frontend, "ModelStreamInfer".
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError

from protos import inference_pb2 as pb
from services.core.backlog import Backlog, Pace
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
_EMPTY_FINAL_KEY: Final = "triton_enable_empty_final_response"
# Appended to a serialized response they add the parameter: protobuf merges.
_FINAL_RESPONSE, _OTHER_RESPONSE = (
    pb.ModelInferResponse(
        parameters={"triton_final_response": pb.InferParameter(bool_param=is_final)}
    ).SerializeToString()
    for is_final in (True, False)
)
# A client that sends without reading is not read from either.
_MOST_IN_FLIGHT: Final = 1024


class StreamedRequest:
    """One request of a stream, waiting for its answer."""

    __slots__ = (
        "__weakref__",
        "_stream",
        "attempts",
        "body",
        "enqueued_ns",
        "open",
        "pace",
        "priority",
        "rows",
        "scheduler",
        "shape_key",
        "timeout_ns",
        "withdraw",
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
        self.withdraw: Callable[[], None] | None = None
        self.pace: Pace | None = None
        self.scheduler: Taker | None = None

    @property
    def metadata(self) -> NativeMetadata:
        """Of its stream."""
        return self._stream.metadata

    def answer(self, message: bytes) -> None:
        """Send the response, marked as the only one."""
        if self.open:
            self.open = False
            self._stream.answered(self, _framed(message, _FINAL_RESPONSE))

    def respond(self, message: bytes | None, *, final: bool) -> None:
        """Send one of several responses of a decoupled model.

        An empty final one only if the client asked for it.
        """
        if not self.open:
            return
        self.open = not final
        if message is not None:
            mark = _FINAL_RESPONSE if final else _OTHER_RESPONSE
            self._stream.responded(self, _framed(message, mark))
        elif _wants_empty_final(self.body):
            empty = _empty_response(self.body)
            self._stream.responded(self, _framed(empty, _FINAL_RESPONSE))
        if final:
            self._stream.done(self)

    def respond_with_error(self, code: int, details: str) -> None:
        """Send an error after which more may come."""
        if self.open:
            self._stream.erred(self, code, details)

    def fail(self, code: int, details: str) -> None:
        """Send the error, with the id of the request."""
        if self.open:
            self.open = False
            self._stream.failed(self, code, details)


class StreamInferCall(StreamCall):
    """One ModelStreamInfer call."""

    __slots__ = (
        "_backlog",
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
        self._backlog = Backlog()
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
            if request.withdraw is not None:
                request.withdraw()
            elif request.scheduler is not None:
                request.scheduler.forget(request)

    def answered(self, request: StreamedRequest, message: bytes) -> None:
        """Send ``message``, a serialized ModelStreamInferResponse, as the last."""
        self._send(request, message)
        self.done(request)

    def responded(self, request: StreamedRequest, message: bytes) -> None:
        """Send ``message``, a serialized ModelStreamInferResponse."""
        if request in self._pending:
            self._send(request, message)

    def done(self, request: StreamedRequest) -> None:
        """Expect nothing more for ``request``."""
        self._pending.discard(request)
        self._read_on()
        self._finish_if_done()

    def erred(self, request: StreamedRequest, code: int, details: str) -> None:
        """Tell the client of an error that does not end ``request``."""
        if self._ends_on_error:
            request.open = False
            self.failed(request, code, details)
        else:
            self.responded(request, _error_message(request.body, details))

    def failed(self, request: StreamedRequest, code: int, details: str) -> None:
        """Tell the client that ``request`` failed."""
        if self._ends_on_error:
            self._pending.discard(request)
            self.finish(code, details)
            self.cancelled()
            return
        self.answered(request, _error_message(request.body, details))

    def _send(self, request: StreamedRequest, message: bytes) -> None:
        size = len(message)
        self.send(message, partial(self._sent_bytes, size))
        self._backlog.add(size, request.pace)

    def _sent_bytes(self, size: int) -> None:
        self._backlog.take(size)
        self._read_on()

    def _read_on(self) -> None:
        in_flight = len(self._pending) + self.unsent
        room = in_flight < _MOST_IN_FLIGHT and not self._backlog.is_long
        if room and self.open and not (self._reading or self._half_closed):
            self._reading = True
            self.read()

    def sent_all(self) -> None:
        """Read on if the client's slowness had stopped us."""
        self._read_on()

    def _finish_if_done(self) -> None:
        if self._half_closed and not self._pending:
            self.finish()


def _framed(response: bytes, mark: bytes) -> bytes:
    """Return the message that carries ``response`` with ``mark`` behind it."""
    prefix = length_prefix(_INFER_RESPONSE_FIELD, len(response) + len(mark))
    return b"".join((prefix, response, mark))


def _error_message(body: bytes, details: str) -> bytes:
    request = _parsed(body)
    return pb.ModelStreamInferResponse(
        error_message=details, infer_response=pb.ModelInferResponse(id=request.id)
    ).SerializeToString()


def _empty_response(body: bytes) -> bytes:
    request = _parsed(body)
    return pb.ModelInferResponse(
        model_name=request.model_name,
        model_version=request.model_version,
        id=request.id,
    ).SerializeToString()


def _wants_empty_final(body: bytes) -> bool:
    if _EMPTY_FINAL_KEY.encode() not in body:
        return False
    parameter = _parsed(body).parameters.get(_EMPTY_FINAL_KEY)
    return parameter is not None and parameter.bool_param


def _parsed(body: bytes) -> pb.ModelInferRequest:
    try:
        return pb.ModelInferRequest.FromString(body)
    except DecodeError:
        return pb.ModelInferRequest()


def stream_infer_calls(
    inference: Inference, forwarding: HeaderForwarding = NO_FORWARDING
) -> Callable[[NativeCall, str, NativeMetadata], StreamInferCall]:
    """Return the factory of ModelStreamInfer calls."""

    def accept(
        call: NativeCall, method: str, metadata: NativeMetadata
    ) -> StreamInferCall:
        return StreamInferCall(call, method, metadata, inference, forwarding)

    return accept
