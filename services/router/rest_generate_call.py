"""The REST doors of the generate extension: one answer, or a stream of events.

Models may be decoupled: they answer a request any number of times.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

import orjson

from services.core.backlog import Backlog, Pace
from services.core.completion_queue import NativeCall, NativeMetadata
from services.router import rest_generate, rest_http_body
from services.router.rest_infer_call import RestInferCall, RestInferDoor
from services.router.rest_plan import ModelView, ReplyPlan, RestInfer
from services.router.rest_response import JSON, HttpReply

GENERATE_METHOD: Final = "/nereid.rest.RestService/ModelGenerate"
GENERATE_STREAM_METHOD: Final = "/nereid.rest.RestService/ModelGenerateStream"

# Triton answers so with status 200.
_NOT_ONE: Final = (
    "generate expects model to produce exactly 1 response, use generate stream for "
    "model that generates various number of responses"
)

_Error: TypeAlias = tuple[int, str]


class GenerateCall(RestInferCall):
    """One POST to .../generate: of what the model answers, exactly one counts."""

    __slots__ = ("_backlog", "_count", "_first", "pace", "withdraw")

    def __init__(
        self,
        call: NativeCall,
        method: str,
        metadata: NativeMetadata,
        door: RestInferDoor,
    ) -> None:
        """Take over a call and read its body."""
        self.withdraw: Callable[[], None] | None = None
        self.pace: Pace | None = None
        self._backlog = Backlog()
        self._count = 0
        self._first: bytes | _Error | None = None
        super().__init__(call, method, metadata, door)

    def respond(self, message: bytes | None, *, final: bool) -> None:
        """Take one response of a decoupled model; the last decides."""
        if message is not None:
            self._take(message)
        if final:
            self._conclude()

    def respond_with_error(self, code: int, details: str) -> None:
        """Take an error, after which more may come."""
        self._take((code, details))

    def cancelled(self) -> None:
        """Have the model stop: nobody waits for its answers any more."""
        if self.withdraw is None:
            super().cancelled()
        else:
            self._withdraw()

    def _withdraw(self) -> None:
        withdraw, self.withdraw = self.withdraw, None
        if withdraw is not None:
            withdraw()

    def _take(self, response: bytes | _Error) -> None:
        self._count += 1
        if self._count == 1:
            self._first = response

    def _conclude(self) -> None:
        first = self._first
        if self._count != 1 or first is None:
            error = orjson.dumps({"error": _NOT_ONE})
            self._reply(HttpReply(content_type=JSON, body=error))
        elif isinstance(first, bytes):
            self.answer(first)
        else:
            self.fail(*first)


class GenerateStreamCall(GenerateCall):
    """One POST to .../generate_stream: every response is an event.

    The first decides about HTTP's status; later errors are events.
    """

    __slots__ = ()

    def respond(self, message: bytes | None, *, final: bool) -> None:
        """Send one response of a decoupled model."""
        if not self.open:
            return
        if message is not None:
            self._send_event(self._encoded(message))
        if final and self.open:
            if not self._count:
                self._send_body(b"")
            self.finish()

    def respond_with_error(self, code: int, details: str) -> None:
        """Send an error; before any event it is the answer."""
        if not self.open:
            return
        if self._count:
            error = orjson.dumps({"error": details})
            self._send_body(rest_generate.event(error))
            return
        self.fail(code, details)
        self._withdraw()

    def fail(self, code: int, details: str) -> None:
        """Answer with an error; behind events it is the last."""
        if self._count and self.open:
            self.respond_with_error(code, details)
            self.finish()
        else:
            super().fail(code, details)

    def _send_event(self, reply: HttpReply | Exception) -> None:
        if isinstance(reply, HttpReply):
            self._send_body(reply.body)
            return
        self._reply(reply)
        self._withdraw()

    def _send_body(self, body: bytes) -> None:
        self._count += 1
        reply = HttpReply(content_type=rest_generate.EVENT_STREAM, body=body)
        for piece in rest_http_body.encode_pieces(reply):
            size = len(piece)
            self.send(piece, partial(self._backlog.take, size))
            self._backlog.add(size, self.pace)


class GenerateDoor(RestInferDoor):
    """What all calls of .../generate share."""

    def parse(
        self, path: rest_http_body.RestCall, body: bytes, headers: Mapping[str, str]
    ) -> RestInfer:
        """Read a whole body; on any thread.

        Raises:
            ServingError: it is no request for a model that is ready.
        """
        del headers
        route = self.inference.table.find(path.model, path.version)
        view = ModelView(name=path.model, version=path.version, config=route.config)
        return rest_generate.parse_generate(
            body, view, max_input_bytes=self.max_input_bytes
        )

    def encode(self, message: bytes, plan: ReplyPlan) -> HttpReply:
        """Return one response as the answer."""
        del plan
        return rest_generate.encode_generate(message)

    def accept(
        self, call: NativeCall, method: str, metadata: NativeMetadata
    ) -> RestInferCall:
        """Serve one call of RestService.ModelGenerate."""
        return GenerateCall(call, method, metadata, self)


class GenerateStreamDoor(GenerateDoor):
    """What all calls of .../generate_stream share."""

    def encode(self, message: bytes, plan: ReplyPlan) -> HttpReply:
        """Return one response as an event."""
        del plan
        return rest_generate.encode_event(message)

    def accept(
        self, call: NativeCall, method: str, metadata: NativeMetadata
    ) -> RestInferCall:
        """Serve one call of RestService.ModelGenerateStream."""
        return GenerateStreamCall(call, method, metadata, self)
