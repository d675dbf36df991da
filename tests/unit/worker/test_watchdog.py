"""Executions that do not return are ended; all others are left alone."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from services.core.clock import MonotonicClock
from services.worker.outlet import Outlet
from services.worker.runs import StatefulRun, StreamedRun, guarded
from services.worker.watchdog import HungError, RunningExecutions, Watchdog, Watched
from tests.unit.worker.puppets import WAIT_S, ManualClock

MS = 1_000_000


def watched(due_ns: int, bound_ns: int = 10) -> Watched:
    return Watched("m_0", bound_ns, due_ns, lambda: None)


def test_an_execution_is_overdue_from_the_end_of_its_bound_on() -> None:
    running = RunningExecutions()
    one = watched(due_ns=10)
    running.begin(one)
    assert running.overdue(9) == []
    assert running.overdue(10) == [one]


def test_what_was_not_ended_is_overdue_again_a_bound_later() -> None:
    running = RunningExecutions()
    one = watched(due_ns=10, bound_ns=5)
    running.begin(one)
    assert running.overdue(12) == [one]
    assert running.overdue(16) == []
    assert running.overdue(17) == [one]


def test_what_has_returned_is_not_overdue() -> None:
    running = RunningExecutions()
    first, second = (running.begin(watched(due_ns=10)) for _ in range(2))
    running.done(first)
    running.done(first)
    assert len(running.overdue(10)) == 1
    running.done(second)
    assert running.overdue(100) == []


def test_who_waits_for_a_slow_reader_does_not_hang() -> None:
    running = RunningExecutions()
    waited = [0]
    one = Watched("m_0", 10, 10, lambda: None, lambda: waited[0])
    running.begin(one)
    waited[0] = 90
    assert running.overdue(99) == []
    assert running.overdue(100) == [one]
    waited[0] = 95
    assert running.overdue(114) == []
    assert running.overdue(115) == [one]


def test_an_execution_is_watched_with_what_its_readers_made_it_wait() -> None:
    seen: list[int] = []

    def run(message: bytes, of: Outlet) -> bytes:
        of.pause(0)
        return message

    @contextmanager
    def guard(waited_ns: Callable[[], int]) -> Iterator[None]:
        yield
        seen.append(waited_ns())

    clock = ManualClock(step_ns=7)
    slow = Outlet(0, send=lambda *_: None, close=lambda: None, now_ns=clock.now_ns)
    watched_run = guarded(StreamedRun(run), guard)
    assert isinstance(watched_run, StreamedRun)
    watched_run.run(b"", slow)
    assert seen == [7]


class Hanging:
    """An execution that returns only when it is ended."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def run(self, message: bytes) -> bytes:
        if message != b"bad":
            return message.upper()
        assert self.ended.wait(WAIT_S)
        raise HungError

    def run_streamed(self, message: bytes, outlet: Outlet) -> bytes:
        del outlet
        return self.run(message)


@pytest.fixture
def given_up() -> threading.Event:
    return threading.Event()


@pytest.fixture
def watchdog(given_up: threading.Event) -> Iterator[Watchdog]:
    made = Watchdog(MonotonicClock(), given_up.set)
    yield made
    made.stop()


def outlet() -> Outlet:
    return Outlet(0, send=lambda *_: None, close=lambda: None)


def plain(watchdog: Watchdog, hanging: Hanging) -> Callable[[bytes], bytes]:
    run = watchdog.watch(hanging.run, "m_0", 20 * MS, hanging.ended.set)
    assert not isinstance(run, StreamedRun | StatefulRun)
    return run


def streamed(watchdog: Watchdog, hanging: Hanging) -> Callable[[bytes], bytes]:
    whole = StreamedRun(hanging.run_streamed)
    run = watchdog.watch(whole, "m_0", 20 * MS, hanging.ended.set)
    assert isinstance(run, StreamedRun)
    return lambda message: run.run(message, outlet())


@pytest.mark.parametrize("kind", [plain, streamed])
def test_a_hung_execution_is_ended_and_only_that(
    watchdog: Watchdog,
    given_up: threading.Event,
    kind: Callable[[Watchdog, Hanging], Callable[[bytes], bytes]],
) -> None:
    hanging = Hanging()
    run = kind(watchdog, hanging)
    assert run(b"good") == b"GOOD"
    assert not hanging.ended.is_set()
    with pytest.raises(HungError):
        run(b"bad")
    assert not given_up.is_set()


def test_where_nothing_else_ends_it_the_worker_gives_up(
    watchdog: Watchdog, given_up: threading.Event
) -> None:
    def wait_for_the_end(message: bytes) -> bytes:
        assert given_up.wait(WAIT_S)
        return message

    run = watchdog.watch(wait_for_the_end, "m_0", 20 * MS)
    assert not isinstance(run, StreamedRun | StatefulRun)
    assert run(b"x") == b"x"
