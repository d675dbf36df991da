"""The steps of ensemble requests, as the schedulers of their models see them."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

from services.core.backlog import Pace
from services.router.pending_request import PendingRequest, Taker
from services.router.route_scheduler import RouteScheduler


@dataclass(frozen=True, slots=True)
class Member:
    """Who executes a step, and what stands before it."""

    scheduler: RouteScheduler
    taker: Taker


class Run(Protocol):
    """An ensemble's request under way."""

    @property
    def request(self) -> PendingRequest:
        """The client's."""
        ...

    def step_answered(self, call: "StepCall", message: bytes) -> None:
        """Go on with what a step has returned."""
        ...

    def step_failed(self, call: "StepCall", code: int, details: str) -> None:
        """End with the step's error."""
        ...


class StreamingRun(Run, Protocol):
    """One whose steps may have several responses."""

    def step_responded(self, call: "StepCall", message: bytes) -> None:
        """Go on with one response of a decoupled step."""
        ...

    def step_ended(self, call: "StepCall") -> None:
        """Expect nothing more of a decoupled step."""
        ...


class StepCall:
    """One step of one ensemble request."""

    __slots__ = (
        "_run",
        "attempts",
        "body",
        "enqueued_ns",
        "open",
        "priority",
        "rows",
        "scheduler",
        "shape_key",
        "step",
        "taker",
        "timeout_ns",
    )

    body: bytes
    rows: int
    shape_key: Hashable
    enqueued_ns: int
    priority: int
    timeout_ns: int

    def __init__(self, run: Run, step: int, member: Member) -> None:
        """Belong to ``run``."""
        self._run = run
        self.step = step
        self.scheduler = member.scheduler
        self.taker = member.taker
        self.attempts = 0
        self.open = True

    @property
    def request(self) -> PendingRequest:
        """The ensemble's request that it is a step of."""
        return self._run.request

    def answer(self, message: bytes) -> None:
        """Take a serialized ModelInferResponse."""
        if self.open:
            self.open = False
            self._run.step_answered(self, message)

    def fail(self, code: int, details: str) -> None:
        """Take an error."""
        if self.open:
            self.open = False
            self._run.step_failed(self, code, details)

    def leave(self) -> None:
        """Want nothing any more."""
        self.open = False
        self.taker.forget(self)


class ProducerCall(StepCall):
    """A decoupled step; a ``DecoupledRequest``."""

    __slots__ = ("_streaming", "_told", "pace", "withdraw")

    def __init__(self, run: StreamingRun, step: int, member: Member) -> None:
        """Belong to ``run``."""
        super().__init__(run, step, member)
        self._streaming = run
        self.withdraw: Callable[[], None] | None = None
        self.pace: Pace | None = None
        # Whom a pause was told that has not ended.
        self._told: Pace | None = None

    def respond(self, message: bytes | None, *, final: bool) -> None:
        """Take one response; None only says that nothing more comes."""
        if not self.open:
            return
        self.open = not final
        if message is not None:
            self._streaming.step_responded(self, message)
        if final:
            self._streaming.step_ended(self)

    def slow_down(self, *, is_slow: bool) -> None:
        """Have the model pause, or go on, if it does not yet."""
        told, self._told = self._told, self.pace if is_slow else None
        if self.pace is not None and is_slow is not (told is self.pace):
            self.pace(is_slow)

    def answer(self, message: bytes) -> None:
        """Take the only response."""
        self.respond(message, final=True)

    def respond_with_error(self, code: int, details: str) -> None:
        """Take an error: it ends the request, as that of any step."""
        if self.open:
            self._run.step_failed(self, code, details)

    def leave(self) -> None:
        """Want nothing any more, of whoever has it."""
        self.open = False
        withdraw, self.withdraw = self.withdraw, None
        if withdraw is not None:
            withdraw()
        else:
            self.taker.forget(self)
