"""The requests of one model version that have to run again. Pure.

They go before all others; ``services.router.retries`` decides in what groups.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.router.pending_request import Execution, Instance, PendingRequest
from services.router.quarantine import Quarantine
from services.router.retries import Group, Isolation, after_exhaustion, after_loss

_QUARANTINE_NS: Final = 600_000_000_000
_MOST_QUARANTINED: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What becomes of the requests that were being executed by a lost worker.

    Attributes:
        again: They run again.
        guilty: They have brought down a worker for the last time.
        given_up: The model does not want anything to run twice.
    """

    again: int = 0
    guilty: tuple[PendingRequest, ...] = ()
    given_up: tuple[PendingRequest, ...] = ()


class Recovery:
    """What runs again, in which order and where."""

    __slots__ = ("_groups", "_is_idempotent", "_isolation", "quarantine")

    def __init__(self, isolation: Isolation, *, is_idempotent: bool) -> None:
        """Begin with nothing to recover.

        Args:
            isolation: Shared by all models of the router.
            is_idempotent: Whether a request may run twice.
        """
        self._groups: deque[Group[PendingRequest]] = deque()
        self._isolation = isolation
        self._is_idempotent = is_idempotent
        self.quarantine = Quarantine(duration_ns=_QUARANTINE_NS, most=_MOST_QUARANTINED)

    def __len__(self) -> int:
        """Return how many requests wait to run again."""
        return sum(r.open for group in self._groups for r in group.requests)

    @property
    def is_idle(self) -> bool:
        """Whether nothing has to run again."""
        return not self._groups

    def lost(self, execution: Execution, worker: str, now_ns: int) -> Loss:
        """Take over what an instance had not answered when ``worker`` was lost."""
        for request in execution.batch:
            request.attempts += 1
        batch = tuple(request for request in execution.batch if request.open)
        if not self._is_idempotent:
            return Loss(given_up=batch)
        judgement = after_loss(
            batch, was_isolated=execution.is_isolated, worker=worker, now_ns=now_ns
        )
        self._groups.extend(judgement.groups)
        for request in judgement.guilty:
            self.quarantine.add(request.body, now_ns)
        return Loss(again=len(batch) - len(judgement.guilty), guilty=judgement.guilty)

    def take_back(self, execution: Execution) -> None:
        """Take over what an instance that left in order had not begun.

        It counts as no attempt, so that any model's may be sent again.
        """
        batch = tuple(request for request in execution.batch if request.open)
        group = Group(batch, is_isolated=execution.is_isolated)
        self._groups.appendleft(group)

    def exhausted(self, requests: Sequence[PendingRequest]) -> bool:
        """Take over requests that did not fit on a device together.

        False if they cannot be split or must not run again.
        """
        if len(requests) == 1 or not self._is_idempotent:
            return False
        for request in requests:
            request.attempts += 1
        self._groups.extendleft(reversed(after_exhaustion(requests)))
        return True

    def next_execution(
        self,
        idle: list[Instance],
        joined_ns: Mapping[Instance, int],
        now_ns: int,
        when_free: Callable[[], None],
    ) -> tuple[Instance, Execution] | None:
        """Take the next group, and the instance for it out of ``idle``.

        Args:
            idle: The instances without work, the warmest last.
            joined_ns: When each of them came.
            now_ns: Monotonic time.
            when_free: To be called if there is a group, but no idle instance may
                have it before a worker is free of suspects.
        """
        groups = self._groups
        while groups and idle:
            group = groups[0]
            batch = tuple(request for request in group.requests if request.open)
            if not batch:
                groups.popleft()
                continue
            sound = [
                instance
                for instance in idle
                if group.may_run_on(instance.worker, joined_ns[instance], now_ns)
            ]
            instance = self._instance_for(group, sound)
            if instance is None:
                self._isolation.wait(when_free)
                return None
            groups.popleft()
            idle.remove(instance)
            return instance, Execution(batch, now_ns, group.is_isolated)
        return None

    @property
    def proven_ns(self) -> int:
        """When the next group may run on any instance; 0 without a group."""
        return self._groups[0].proven_ns if self._groups else 0

    def ended(
        self, instance: Instance, execution: Execution
    ) -> tuple[Callable[[], None], ...]:
        """Return who is to be called because ``execution`` is over."""
        if not execution.is_isolated:
            return ()
        return self._isolation.release(instance.worker)

    def drain(self) -> tuple[PendingRequest, ...]:
        """Take out everyone."""
        everyone = tuple(r for group in self._groups for r in group.requests if r.open)
        self._groups.clear()
        return everyone

    def _instance_for(
        self, group: Group[PendingRequest], sound: list[Instance]
    ) -> Instance | None:
        if not group.is_isolated:
            return sound[-1]
        for instance in reversed(sound):
            if self._isolation.is_free(instance.worker):
                self._isolation.take(instance.worker)
                return instance
        return None
