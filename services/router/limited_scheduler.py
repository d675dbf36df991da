"""The scheduler of models whose instances execute by turns.

Such an instance is free only when its worker's rate limiter says so. Until then the
requests stay in their queue: the batch is formed when the turn is there.
"""

import functools
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from services.core.completion_queue import Reactor
from services.router.pending_request import Execution, Instance, PendingRequest
from services.router.queue_limits import QueueLimits
from services.router.retries import Isolation
from services.router.route_table import Route
from services.router.scheduler import Scheduler


@runtime_checkable
class TurnTaker(Instance, Protocol):
    """An instance that executes only when it is its turn.

    Attributes:
        has_turn: Whether it is; ``execute`` takes it.
    """

    has_turn: bool

    @property
    def is_asking(self) -> bool:
        """Whether a turn has been asked for that has not come."""
        ...

    def ask(self, on_turn: Callable[[], None]) -> None:
        """Ask for a turn, unless that is done; ``on_turn`` is called when it comes."""
        ...

    def pass_turn(self) -> None:
        """Give a turn back."""
        ...


def is_limited(route: Route) -> bool:
    """Return whether an instance of ``route`` may have to wait for resources."""
    limits = (group.rate_limiter for group in route.config.instance_groups)
    return any(each is not None and each.resources for each in limits)


class LimitedScheduler(Scheduler):
    """A scheduler some of whose instances take turns."""

    __slots__ = ("_resting", "_takers")

    def __init__(
        self,
        route: Route,
        reactor: Reactor,
        now_ns: Callable[[], int] = time.monotonic_ns,
        *,
        limits: QueueLimits | None = None,
        isolation: Isolation | None = None,
    ) -> None:
        """Start with no request and no instance; see Scheduler."""
        self._takers: set[TurnTaker] = set()
        # Those that execute nothing and have no turn.
        self._resting: set[TurnTaker] = set()
        super().__init__(route, reactor, now_ns, limits=limits, isolation=isolation)

    @property
    def is_quiet(self) -> bool:
        """Whether no request waits and none is being executed."""
        return (
            not self.waiting
            and len(self._idle) + len(self._resting) == len(self._instances)
            and not self._streaming
        )

    def enqueue(self, request: PendingRequest) -> None:
        """Take an admitted request, or refuse it if it may not wait."""
        super().enqueue(request)
        self._reactor.call_when_drained(self.dispatch)

    def attach(self, instance: Instance) -> None:
        """Take an instance into service."""
        if isinstance(instance, TurnTaker):
            self._takers.add(instance)
        super().attach(instance)

    def detach(
        self,
        instance: Instance,
        unanswered: tuple[Execution, ...],
        *,
        were_begun: bool = True,
    ) -> None:
        """Let an instance go; what it had not answered runs elsewhere."""
        if isinstance(instance, TurnTaker):
            self._takers.discard(instance)
            self._resting.discard(instance)
        super().detach(instance, unanswered, were_begun=were_begun)

    def completed(
        self, instance: Instance, execution: Execution, message: bytes
    ) -> None:
        """Hand out the answers; a turn that came meanwhile is used or given back."""
        super().completed(instance, execution, message)
        self._dispatch()

    def _dispatch(self) -> None:
        self._rest()
        super()._dispatch()
        if not self._pass_turns():
            self._ask_for_turns()

    def _rest(self) -> None:
        """Take those out of the idle that have no turn."""
        for taker in self._takers.intersection(self._idle):
            if not taker.has_turn:
                self._idle.remove(taker)
                self._resting.add(taker)

    def _pass_turns(self) -> bool:
        """Give back the turns that nobody had a request for; False if none."""
        unused = self._takers.intersection(self._idle)
        for taker in unused:
            taker.pass_turn()
        self._rest()
        return bool(unused)

    def _ask_for_turns(self) -> None:
        """Ask for every instance, also those that are executing, if a batch may go."""
        due_ns = 0 if not self._recovery.is_idle else self._batcher.due_ns()
        if due_ns is None:
            return
        if due_ns > self._now_ns():
            self._company.ring_at(due_ns)
            return
        for taker in self._takers:
            if not (taker.has_turn or taker.is_asking):
                taker.ask(functools.partial(self._turn, taker))

    def _turn(self, taker: TurnTaker) -> None:
        """Use a turn that has come, now or when the present execution is over."""
        if taker in self._resting:
            self._resting.discard(taker)
            self._idle.append(taker)
            self._dispatch()
