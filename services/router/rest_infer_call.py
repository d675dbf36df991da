"""The REST door of inference: a body in chunks becomes a request like any other.

Envoy streams the HTTP body as RestRequest messages, so that it holds none of it,
and the answer likewise. Small bodies are parsed on the loop's thread, which is
cheaper than a hop to another; large ones on the pool, so that they delay nobody.
"""

import time
from collections.abc import Hashable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import ClassVar, Final

import grpc
import structlog

from services.core.completion_queue import (
    NativeCall,
    NativeMetadata,
    Reactor,
    StreamCall,
)
from services.core.errors import ServingError
from services.router import (
    rest_http_body,
    rest_request,
    rest_response,
)
from services.router.header_forwarding import HeaderForwarding
from services.router.inference import Inference
from services.router.pending_request import Taker
from services.router.rest_http_body import ORIGINAL_PATH
from services.router.rest_plan import ModelView, ReplyPlan, RestInfer
from services.router.rest_response import HttpReply
from services.router.rest_status import (
    LONGEST_DETAILS_BYTES,
    rest_status,
    text_headers,
    trailing_headers,
)
from services.router.retry_hint import http_hint

REST_INFER_METHOD: Final = "/nereid.rest.RestService/ModelInfer"

_log = structlog.get_logger(__name__)
_INLINE_BYTES: Final = 64 << 10
_CANCELLED: Final[int] = grpc.StatusCode.CANCELLED.value[0]


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
        "began_ns",
        "body",
        "enqueued_ns",
        "priority",
        "received_ns",
        "rows",
        "scheduler",
        "shape_key",
        "timeout_ns",
    )

    longest_details: ClassVar[int] = LONGEST_DETAILS_BYTES

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
        door: "RestInferDoor",
    ) -> None:
        """Take over a call and read its body."""
        super().__init__(call, method, metadata)
        self.began_ns = self.received_ns = time.monotonic_ns()
        self._door = door
        self._headers = text_headers(metadata)
        self._path: rest_http_body.RestCall | None = None
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._plan: ReplyPlan | None = None
        self.scheduler: Taker | None = None
        self.read()

    def received(self, message: bytes) -> None:
        """Take one chunk of the body; the first names the model too."""
        try:
            path = "" if self._path else self._headers.get(ORIGINAL_PATH, "")
            piece = rest_http_body.decode_call(message, path)
            self._size_bytes += len(piece.body)
            rest_request.check_size(self._size_bytes, self._door.max_input_bytes)
        except ServingError as error:
            self._chunks.clear()
            self._reply(error)
            return
        if self._path is None:
            self._path = piece
        self._chunks.append(piece.body)
        self.read()

    @property
    def is_arriving(self) -> bool:
        """Whether its body is still on the way, or being read."""
        return self.open and self._plan is None

    def half_closed(self) -> None:
        """Begin, if the whole body has come."""
        self.received_ns = time.monotonic_ns()
        if not self.open or self._path is None:
            self.finish(_CANCELLED, "the client left before it sent anything")
            return
        try:
            rest_http_body.check_complete(self._headers, self._size_bytes)
        except ServingError as error:
            self._reply(error)
            return
        self._read_request()

    def cancelled(self) -> None:
        """Leave the queue: nobody waits for the answer any more."""
        self._chunks.clear()
        if self.scheduler is not None:
            self.scheduler.forget(self)

    def hang_up(self) -> None:
        """End the call, unless its answer is being written somewhere."""
        if self._plan is None:
            super().hang_up()

    def answer(self, message: bytes) -> None:
        """Answer with a serialized ModelInferResponse, as HTTP."""
        # It is counted: a client that leaves from now on is not counted again.
        self.scheduler = None
        if len(message) <= _INLINE_BYTES:
            self._reply(self._encoded(message))
        else:
            self._door.pool.submit(self._encode_elsewhere, message)

    def fail(self, code: int, details: str) -> None:
        """Answer with an error."""
        self.finish(*rest_status(code, details), http_hint(code))

    def _read_request(self) -> None:
        """Parse the body, once there is a model that says what belongs in it."""
        path, inference = self._path, self._door.inference
        if path is None or not self.open:
            return
        if inference.table.loadable and inference.on_demand.keep(
            inference.table,
            self,
            path.model,
            size_bytes=self._size_bytes,
            go_on=self._read_request,
        ):
            return
        if self._size_bytes <= _INLINE_BYTES:
            self._begin(self._parsed(path))
        else:
            self._door.pool.submit(self._parse_elsewhere, path)

    def _begin(self, parsed: RestInfer | Exception) -> None:
        if isinstance(parsed, Exception):
            self._reply(parsed)
            return
        if not self.open:
            return
        self._plan = parsed.reply
        self._door.inference.submit(self, parsed.request)

    def _parsed(self, path: rest_http_body.RestCall) -> RestInfer | Exception:
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        try:
            return self._door.forwarded(
                self._door.parse(path, body, self._headers), self._headers
            )
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            return error

    def _encoded(self, message: bytes) -> HttpReply | Exception:
        if self._plan is None:
            return RuntimeError("an answer came before its request")
        try:
            return self._door.encode(message, self._plan)
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            return error

    def _parse_elsewhere(self, path: rest_http_body.RestCall) -> None:
        parsed = self._parsed(path)
        self._door.reactor.call_soon_threadsafe(lambda: self._begin(parsed))

    def _encode_elsewhere(self, message: bytes) -> None:
        reply = self._encoded(message)
        self._door.reactor.call_soon_threadsafe(lambda: self._reply(reply))

    def _reply(self, reply: HttpReply | Exception) -> None:
        if isinstance(reply, Exception):
            if not isinstance(reply, ServingError):
                _log.error("a REST inference failed", exc_info=reply)
            self.finish(*rest_status(reply), trailing_headers(reply))
            return
        self.begin(reply.headers)
        for piece in rest_http_body.encode_pieces(reply):
            self.send(piece)
        self.finish()


class RestInferDoor:
    """What all REST inferences share."""

    def __init__(
        self,
        inference: Inference,
        reactor: Reactor,
        pool: Executor,
        max_input_bytes: int,
        forwarding: HeaderForwarding,
    ) -> None:
        """Hand requests to ``inference``."""
        self._forwarding = forwarding
        self.inference = inference
        self.reactor = reactor
        self.pool = pool
        self.max_input_bytes = max_input_bytes

    def parse(
        self, path: rest_http_body.RestCall, body: bytes, headers: Mapping[str, str]
    ) -> RestInfer:
        """Read a whole body; on any thread.

        Raises:
            ServingError: it is no request for a model that is ready.
        """
        route = self.inference.table.find(path.model, path.version)
        view = ModelView(name=path.model, version=path.version, config=route.config)
        return rest_request.parse_infer(
            body, headers, view, max_input_bytes=self.max_input_bytes
        )

    def forwarded(self, parsed: RestInfer, headers: Mapping[str, str]) -> RestInfer:
        """Add the headers that the model is to see; on any thread.

        Raises:
            ServingError: one of them may not be forwarded.
        """
        if not self._forwarding.is_on:
            return parsed
        request = self._forwarding.forward(headers, parsed.request)
        return replace(parsed, request=request)

    def encode(self, message: bytes, plan: ReplyPlan) -> HttpReply:
        """Return the answer to a request; on any thread.

        Raises:
            ServingError: HTTP cannot carry it.
        """
        return rest_response.encode_infer(message, plan)

    def accept(
        self, call: NativeCall, method: str, metadata: NativeMetadata
    ) -> RestInferCall:
        """Serve one call of RestService.ModelInfer."""
        return RestInferCall(call, method, metadata, self)
