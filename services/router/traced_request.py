"""One request under observation: what it notes, and how it stays unnoticed.

A traced request stands for the client's in its scheduler, like others that stand
for one. Nobody else knows that a request is traced.

Source of the names: Triton's trace extension.
"""

from collections.abc import Callable
from dataclasses import dataclass

from services.core.backlog import Pace
from services.router.pending_request import PendingRequest
from services.router.request_content import request_id
from services.router.request_trace import RequestTrace
from services.router.stand_in import StandIn
from services.router.streamed_replies import DecoupledRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """How a request came in.

    Attributes:
        received: Its first timestamps.
        send_prefix: What those of its answer begin with.
        traceparent: From its headers.
    """

    received: tuple[tuple[str, int], ...] = ()
    send_prefix: str = ""
    traceparent: str = ""


class TracedRequest(StandIn):
    """Stands for a client's request, and notes what becomes of it."""

    __slots__ = (
        "_now_ns",
        "_on_end",
        "_send_prefix",
        "trace",
    )

    def __init__(
        self,
        request: PendingRequest,
        trace: RequestTrace,
        arrival: Arrival,
        on_end: Callable[[RequestTrace], None],
        now_ns: Callable[[], int],
    ) -> None:
        """Stand for ``request``, which has just been admitted.

        Args:
            request: The client's.
            trace: Where to note it.
            arrival: How it came in.
            on_end: Called once, with the finished trace.
            now_ns: The monotonic clock.
        """
        super().__init__(request)
        self.trace = trace
        self._on_end: Callable[[RequestTrace], None] | None = on_end
        self._now_ns = now_ns
        self._send_prefix = arrival.send_prefix
        trace.timestamps.extend(arrival.received)
        trace.begin(at_ns=request.enqueued_ns, queued_ns=now_ns())
        trace.request_id = request_id(request.body)
        trace.traceparent = arrival.traceparent
        if trace.keeps_tensors:
            trace.request = request.body

    def answer(self, message: bytes) -> None:
        """Give the client a serialized ModelInferResponse."""
        if self.trace.keeps_tensors:
            self.trace.response = message
        self._send(lambda: self.request.answer(message))

    def fail(self, code: int, details: str) -> None:
        """Give the client an error."""
        self.trace.error = details
        self._send(lambda: self.request.fail(code, details))

    def leave(self) -> None:
        """End the trace: the client has left."""
        self.trace.error = "the client has left"
        self._end()

    def _send(self, deliver: Callable[[], None]) -> None:
        trace = self.trace
        ended_ns = self._now_ns()
        trace.end(ended_ns)
        if self._send_prefix:
            trace.note(f"{self._send_prefix}_START", ended_ns)
        deliver()
        if self._send_prefix:
            trace.note(f"{self._send_prefix}_END", self._now_ns())
        self._end()

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self.trace)


class TracedStreamRequest(TracedRequest):
    """The same for a request that gets any number of responses."""

    __slots__ = ("_stream",)

    def __init__(
        self,
        request: DecoupledRequest,
        trace: RequestTrace,
        arrival: Arrival,
        on_end: Callable[[RequestTrace], None],
        now_ns: Callable[[], int],
    ) -> None:
        """Stand for ``request``, see TracedRequest."""
        super().__init__(request, trace, arrival, on_end, now_ns)
        self._stream = request

    @property
    def withdraw(self) -> Callable[[], None] | None:
        """What is called if the client leaves."""
        return self._stream.withdraw

    @withdraw.setter
    def withdraw(self, withdraw: Callable[[], None] | None) -> None:
        if withdraw is None:
            self._stream.withdraw = None
            return

        def leave() -> None:
            withdraw()
            self.leave()

        self._stream.withdraw = leave

    def hold(self) -> None:
        """Have the trace wait for the end of the execution."""
        self.trace.tree.began()

    def release(self) -> None:
        """Let it end."""
        self.trace.tree.ended()

    @property
    def pace(self) -> Pace | None:
        """What is called while the client reads too slowly."""
        return self._stream.pace

    @pace.setter
    def pace(self, pace: Pace | None) -> None:
        self._stream.pace = pace

    def respond(self, message: bytes | None, *, final: bool) -> None:
        """Give the client one response; the last ends the trace.

        Of the responses' tensors the trace keeps the latest.
        """
        if message is not None and self.trace.keeps_tensors:
            self.trace.response = message
        if final:
            self._send(lambda: self._stream.respond(message, final=True))
        else:
            self._stream.respond(message, final=False)

    def respond_with_error(self, code: int, details: str) -> None:
        """Give the client an error, after which more may come."""
        self.trace.error = details
        self._stream.respond_with_error(code, details)
