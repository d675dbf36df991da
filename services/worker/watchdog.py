"""Executions that do not return, although their process lives.

Nothing can stop a thread inside a runtime. So who can end the execution is told: a
backend with a process of its own ends that process, for all others the worker ends.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from services.core.clock import Clock
from services.worker.runs import AnyRun, guarded

# A hung execution is found this late at most, or after a quarter of its bound.
_PERIOD_S: Final = 1.0
_NS: Final = 1_000_000_000

_log = structlog.get_logger(__name__)


class HungError(Exception):
    """An execution was ended because it did not return in time.

    Not an answer: its batch is to be executed elsewhere, or by what takes its place.
    """


@dataclass(slots=True, eq=False)
class Watched:
    """An execution that is running.

    Attributes:
        instance: Whose.
        bound_ns: How long it may take.
        due_ns: When it will have taken too long, had it never waited.
        end: Ends it.
        waited_ns: How long it has waited for slow readers, which is not its fault.
    """

    instance: str
    bound_ns: int
    due_ns: int
    end: Callable[[], None]
    waited_ns: Callable[[], int] = lambda: 0


class RunningExecutions:
    """Which executions take too long. Pure but for what it is given."""

    def __init__(self) -> None:
        """Begin with none."""
        self._running: dict[int, Watched] = {}
        self._number = 0

    def begin(self, watched: Watched) -> int:
        """Watch an execution; return the number that ``done`` wants."""
        self._number += 1
        self._running[self._number] = watched
        return self._number

    def done(self, number: int) -> None:
        """Watch it no longer."""
        self._running.pop(number, None)

    def overdue(self, now_ns: int) -> list[Watched]:
        """Return those that have taken too long; again each time their bound passes.

        What was to end one may have come too early: its process was just starting.
        """
        found = []
        for one in self._running.values():
            worked_until_ns = now_ns - one.waited_ns()
            if one.due_ns <= worked_until_ns:
                one.due_ns = worked_until_ns + one.bound_ns
                found.append(one)
        return found


class Watchdog:
    """Looks after the executions of a worker; from any thread."""

    def __init__(self, clock: Clock, give_up: Callable[[], None]) -> None:
        """Watch nobody yet.

        Args:
            clock: Monotonic.
            give_up: Ends the worker, for nothing less ends a hung execution.
        """
        self._now_ns = clock.now_ns
        self._give_up = give_up
        self._lock = threading.Lock()
        self._running = RunningExecutions()
        self._period_s = _PERIOD_S
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(
        self,
        run: AnyRun,
        instance: str,
        bound_ns: int,
        end: Callable[[], None] | None = None,
    ) -> AnyRun:
        """Return ``run``, watched from now on.

        Args:
            run: Answers one batch at a time.
            instance: Its name.
            bound_ns: How long it may take.
            end: Makes ``run`` raise HungError; None: the worker has to end.
        """
        with self._lock:
            self._period_s = min(self._period_s, bound_ns / _NS / 4)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._look, name="watchdog", daemon=True
                )
                self._thread.start()
        guard = partial(self._guard, instance, bound_ns, end or self._give_up)
        return guarded(run, guard)

    def stop(self) -> None:
        """Look no longer."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    @contextlib.contextmanager
    def _guard(
        self,
        instance: str,
        bound_ns: int,
        end: Callable[[], None],
        waited_ns: Callable[[], int],
    ) -> Iterator[None]:
        due_ns = self._now_ns() + bound_ns
        watched = Watched(instance, bound_ns, due_ns, end, waited_ns)
        with self._lock:
            number = self._running.begin(watched)
        try:
            yield
        finally:
            with self._lock:
                self._running.done(number)

    def _look(self) -> None:
        while not self._stopping.wait(self._period_s):
            with self._lock:
                overdue = self._running.overdue(self._now_ns())
            for one in overdue:
                _log.error(
                    "an execution does not return",
                    instance=one.instance,
                    bound_s=one.bound_ns / _NS,
                )
                one.end()
