"""The REST door of inference: a body in chunks becomes a request like any other.

Envoy streams the HTTP body as RestRequest messages, so that it holds none of it,
and the answer likewise. Small bodies are parsed on the loop's thread, which is
cheaper than a hop to another; large ones on the pool, so that they delay nobody.
"""

from collections.abc import Hashable
from concurrent.futures import Executor
from typing import Final

import grpc
import structlog
from google.protobuf.message import DecodeError

from protos import rest_pb2
from services.core.completion_queue import (
    NativeCall,
    NativeMetadata,
    Reactor,
    StreamCall,
    metadata_values,
)
from services.core.errors import InvalidRequestError, ServingError
from services.router import rest_request, rest_response
from services.router.inference import Inference
from services.router.rest_reply import Headers, HttpReply, http_body, rest_status_of
from services.router.scheduler import Scheduler

REST_INFER_METHOD: Final = "/nereid.rest.RestService/ModelInfer"

_log = structlog.get_logger(__name__)
_INLINE_BYTES: Final = 64 << 10
_CANCELLED: Final[int] = grpc.StatusCode.CANCELLED.value[0]
# Content-Length as the client sent it: Envoy drops the header itself.
_LENGTH_KEY: Final = "x-content-length"


class RestInferCall(StreamCall):
    """One POST to .../infer, from its first chunk to its answer."""

    __slots__ = (
        "_chunks",
        "_door",
        "_headers",
        "_path",
        "_plan",
        "_size_bytes",
        "attempts",
        "body",
        "enqueued_ns",
        "rows",
        "scheduler",
        "shape_key",
    )

    body: bytes
    rows: int
    shape_key: Hashable
    enqueued_ns: int
    attempts: int

    def __init__(
        self,
        call: NativeCall,
        method: str,
        metadata: NativeMetadata,
        door: "RestInferDoor",
    ) -> None:
        """Take over a call and read its body."""
        super().__init__(call, method, metadata)
        self._door = door
        self._headers: Headers = {
            key: value
            for key, value in metadata_values(metadata).items()
            if isinstance(value, str)
        }
        self._path: rest_pb2.RestRequest | None = None
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._plan: rest_request.ReplyPlan | None = None
        self.scheduler: Scheduler | None = None
        self.read()

    def received(self, message: bytes) -> None:
        """Take one chunk of the body; the first names the model too."""
        try:
            request = rest_pb2.RestRequest.FromString(message)
        except DecodeError:
            self.refuse(InvalidRequestError("not a RestRequest"))
            return
        if self._path is None:
            self._path = rest_pb2.RestRequest(
                model_name=request.model_name, model_version=request.model_version
            )
        chunk = request.body.data
        self._size_bytes += len(chunk)
        if self._size_bytes > self._door.max_input_bytes:
            self.refuse(
                InvalidRequestError(
                    f"request body is larger than the {self._door.max_input_bytes} "
                    "bytes that --http-max-input-size allows"
                )
            )
            return
        self._chunks.append(chunk)
        self.read()

    def half_closed(self) -> None:
        """Begin, if the whole body has come."""
        if not self.open:
            return
        promised = self._headers.get(_LENGTH_KEY, "")
        if self._path is None or (
            promised.isdecimal() and int(promised) != self._size_bytes
        ):
            self.finish(_CANCELLED, "the client left before its body was complete")
            return
        if self._size_bytes <= _INLINE_BYTES:
            self._begin(self._parsed())
        else:
            self._door.pool.submit(self._parse_elsewhere)

    def cancelled(self) -> None:
        """Leave the queue: nobody waits for the answer any more."""
        self._chunks.clear()
        if self.scheduler is not None:
            self.scheduler.forget(self)

    def answer(self, message: bytes) -> None:
        """Answer with a serialized ModelInferResponse, as HTTP."""
        if len(message) <= _INLINE_BYTES:
            self._reply(self._encoded(message))
        else:
            self._door.pool.submit(self._encode_elsewhere, message)

    def fail(self, code: int, details: str) -> None:
        """Answer with an error."""
        self.finish(*rest_status_of(code, details))

    def refuse(self, error: Exception) -> None:
        """Answer with the status of ``error``."""
        self._reply(error)

    def _begin(self, parsed: "rest_request.RestInfer | Exception") -> None:
        if isinstance(parsed, Exception):
            self._reply(parsed)
            return
        self._plan = parsed.reply
        self._door.inference.submit(self, parsed.request)

    def _parsed(self) -> "rest_request.RestInfer | Exception":
        path = self._path or rest_pb2.RestRequest()
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        try:
            return self._door.parse(path, body, self._headers)
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            return error

    def _encoded(self, message: bytes) -> HttpReply | Exception:
        if self._plan is None:
            return RuntimeError("an answer came before its request")
        try:
            return rest_response.encode_infer(message, self._plan)
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            return error

    def _parse_elsewhere(self) -> None:
        parsed = self._parsed()
        self._door.reactor.call_soon_threadsafe(lambda: self._begin(parsed))

    def _encode_elsewhere(self, message: bytes) -> None:
        reply = self._encoded(message)
        self._door.reactor.call_soon_threadsafe(lambda: self._reply(reply))

    def _reply(self, reply: HttpReply | Exception) -> None:
        if isinstance(reply, Exception):
            if not isinstance(reply, ServingError):
                _log.error("a REST inference failed", exc_info=reply)
            self.finish(*rest_status_of(reply))
            return
        self.begin(reply.metadata)
        self.send(http_body(reply))
        self.finish()


class RestInferDoor:
    """What all REST inferences share."""

    def __init__(
        self,
        inference: Inference,
        reactor: Reactor,
        pool: Executor,
        max_input_bytes: int,
    ) -> None:
        """Hand requests to ``inference``."""
        self.inference = inference
        self.reactor = reactor
        self.pool = pool
        self.max_input_bytes = max_input_bytes

    def accept(
        self, call: NativeCall, method: str, metadata: NativeMetadata
    ) -> RestInferCall:
        """Serve one call of RestService.ModelInfer."""
        return RestInferCall(call, method, metadata, self)
