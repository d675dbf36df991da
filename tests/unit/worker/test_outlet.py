"""Outlets: who is paused, and who waits."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from services.worker.outlet import Cause, Outlet
from tests.unit.worker.puppets import WAIT_S


class Clock:
    """Stands until it is set."""

    def __init__(self) -> None:
        self.at_ns = 0

    def now_ns(self) -> int:
        return self.at_ns


def outlet(clock: Clock | None = None) -> Outlet:
    return Outlet(
        0,
        send=lambda *_: None,
        close=lambda: None,
        now_ns=(clock or Clock()).now_ns,
    )


@contextmanager
def waiting(of: Outlet, place: int) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=of.wait_for_room, args=(place,), daemon=True)
    thread.start()
    yield thread
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "end",
    [lambda of: of.resume(1), lambda of: of.cancel(1), Outlet.cancel_all],
    ids=["the reader has caught up", "it has left", "the stream has ended"],
)
def test_who_answers_a_slow_reader_waits_until(end: Callable[[Outlet], None]) -> None:
    one = outlet()
    one.pause(1)
    one.wait_for_room(0)  # nobody is slow there
    with waiting(one, 1) as thread:
        assert thread.is_alive()
        end(one)


def test_a_request_goes_on_when_nothing_is_slow_any_more() -> None:
    one, told = outlet(), list[tuple[int, bool]]()
    one.on_pause((0, 1), lambda place, is_slow: told.append((place, is_slow)))
    one.pause(1)
    one.pause(1, Cause.STREAM)
    one.resume(1)
    assert told == [(1, True)]
    one.resume(1, Cause.STREAM)
    assert told == [(1, True), (1, False)]


def test_a_pause_that_came_early_is_told_late() -> None:
    one, told = outlet(), list[tuple[int, bool]]()
    one.pause(1)
    one.pause(0)
    one.resume(0)
    one.on_pause((0, 1), lambda place, is_slow: told.append((place, is_slow)))
    assert told == [(1, True)]


def test_nobody_is_paused_who_has_left() -> None:
    one = outlet()
    one.cancel(0)
    one.pause(0)
    one.wait_for_room(0)
    one.cancel_all()
    one.pause(1)
    one.wait_for_room(1)


def test_a_lost_stream_cancels_also_what_is_begun_afterwards() -> None:
    one, cancelled = outlet(), list[int]()
    one.cancel_all()
    one.on_cancel((0, 1), cancelled.append)
    one.cancel(1)
    assert cancelled == [0, 1]


def test_the_time_in_which_any_request_is_paused_is_known() -> None:
    clock = Clock()
    one = outlet(clock)
    seen = []
    steps: tuple[tuple[int, Callable[[], None]], ...] = (
        (10, lambda: one.pause(0)),
        (13, lambda: one.pause(1)),
        (15, lambda: one.resume(0)),
        (18, lambda: one.cancel(1)),
        (25, lambda: one.pause(2)),
        (26, lambda: None),
    )
    for at_ns, act in steps:
        clock.at_ns = at_ns
        act()
        seen.append(one.waited_ns())
    assert seen == [0, 3, 5, 8, 8, 9]
