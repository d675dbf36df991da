"""One request under observation: what it notes, and how it stays unnoticed.

A traced request stands for the client's in its scheduler, like others that stand
for one. Nobody else knows that a request is traced.

The worker tells durations, not times; its execution is placed in the middle of the
time between dispatch and answer. Source of the names: Triton's trace extension.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from services.router.pending_request import PendingRequest
from services.router.request_content import request_id
from services.router.stand_in import StandIn
from services.router.streamed_replies import DecoupledRequest

_START: Final = "REQUEST_START"
_QUEUED: Final = "QUEUE_START"
_COMPLETE: Final = "INFER_RESPONSE_COMPLETE"
_END: Final = "REQUEST_END"


@dataclass(slots=True, kw_only=True)
class RequestTrace:
    """What happened to one request.

    Attributes:
        model: Whose request.
        version: Of the model.
        request_id: The client's own; may be empty.
        is_step: Whether an ensemble made the request.
        timestamps: (name, monotonic nanoseconds), in order.
        keeps_tensors: Whether the next two are wanted.
        request: Serialized ModelInferRequest; empty unless tensors are wanted.
        response: Serialized ModelInferResponse; the same.
        traceparent: The caller's W3C trace context; may be empty.
        error: Why it failed; empty if it did not.
        steps: Of an ensemble, by the step's request.
    """

    model: str
    version: int
    request_id: str = ""
    is_step: bool = False
    timestamps: list[tuple[str, int]] = field(default_factory=list)
    keeps_tensors: bool = False
    request: bytes = b""
    response: bytes = b""
    traceparent: str = ""
    error: str = ""
    steps: "dict[PendingRequest, RequestTrace]" = field(default_factory=dict)

    def begin(self, *, at_ns: int, queued_ns: int) -> None:
        """Note that the request has been admitted."""
        self.note(_START, at_ns)
        self.note(_QUEUED, queued_ns)

    def end(self, at_ns: int) -> None:
        """Note that there is a response, or an error."""
        self.note(_COMPLETE, at_ns)
        self.note(_END, at_ns)

    def note(self, name: str, at_ns: int) -> None:
        """Note a time."""
        self.timestamps.append((name, at_ns))

    def executed(
        self, dispatched_ns: int, timing: tuple[int, int, int], done_ns: int
    ) -> None:
        """Note an execution; of several, which are retries, the last counts.

        Args:
            dispatched_ns: When its batch left the queue.
            timing: What the worker measured: input, infer, output; ns.
            done_ns: When its answer was here.
        """
        input_ns, infer_ns, output_ns = timing
        elsewhere_ns = done_ns - dispatched_ns - sum(timing)
        start_ns = dispatched_ns + max(elsewhere_ns, 0) // 2
        execution = [
            ("COMPUTE_START", start_ns),
            ("COMPUTE_INPUT_END", start_ns + input_ns),
            ("COMPUTE_OUTPUT_START", start_ns + input_ns + infer_ns),
            ("COMPUTE_END", start_ns + input_ns + infer_ns + output_ns),
        ]
        if self.is_step:
            execution += [(_COMPLETE, done_ns), (_END, done_ns)]
        names = {name for name, _ in execution}
        self.timestamps = [each for each in self.timestamps if each[0] not in names]
        self.timestamps.extend(execution)


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
        self._stream.withdraw = withdraw

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
