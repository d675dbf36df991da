"""Only time in which a process ran counts against those it waits for."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.control.patience import Wait, patience


class HandLoop:
    """Timers whose time is moved by hand, and that cannot run while it is stopped."""

    def __init__(self) -> None:
        self._now_s = 100.0
        self._loop = asyncio.new_event_loop()
        self._timers: list[tuple[float, asyncio.TimerHandle, Callable[[], None]]] = []

    def close(self) -> None:
        self._loop.close()

    def time(self) -> float:
        return self._now_s

    def call_later(
        self, delay: float, callback: Callable[[], None], /
    ) -> asyncio.TimerHandle:
        due_s = self._now_s + delay
        handle = asyncio.TimerHandle(due_s, callback, (), self._loop)
        self._timers.append((due_s, handle, callback))
        return handle

    def run(self, seconds: float) -> None:
        """Let time pass, each timer called when it is due."""
        end_s = self._now_s + seconds
        while (timer := self._first()) is not None and timer[0] <= end_s:
            self._now_s = max(self._now_s, timer[0])
            self._timers.remove(timer)
            timer[2]()
        self._now_s = end_s

    def stand_still(self, seconds: float) -> None:
        """Let time pass as for a process that is stopped, then one round."""
        self._now_s += seconds
        self.run(0.0)

    def _first(self) -> tuple[float, asyncio.TimerHandle, Callable[[], None]] | None:
        live = [timer for timer in self._timers if not timer[1].cancelled()]
        return min(live, key=lambda timer: timer[0], default=None)


@pytest.fixture
def loop() -> Iterator[HandLoop]:
    made = HandLoop()
    yield made
    made.close()


def test_a_wait_ends_when_its_time_has_passed(loop: HandLoop) -> None:
    ended: list[float] = []
    Wait(loop, 5.0, lambda: ended.append(loop.time()))
    loop.run(4.9)
    assert ended == []
    loop.run(10.0)
    assert ended == [105.0]


def test_a_wait_for_no_time_ends_in_the_next_round(loop: HandLoop) -> None:
    ended: list[float] = []
    Wait(loop, 0.0, lambda: ended.append(loop.time()))
    assert ended == []
    loop.run(0.0)
    assert ended == [100.0]


def test_time_in_which_the_process_was_stopped_does_not_count(loop: HandLoop) -> None:
    ended: list[float] = []
    Wait(loop, 5.0, lambda: ended.append(loop.time()))
    loop.run(0.6)
    loop.stand_still(3600.0)
    loop.run(4.0)
    assert ended == []
    loop.run(1.0)
    assert len(ended) == 1


def test_who_is_stopped_just_before_the_end_still_listens_once_more(
    loop: HandLoop,
) -> None:
    ended: list[float] = []
    Wait(loop, 5.0, lambda: ended.append(loop.time()))
    loop.run(4.9)
    loop.stand_still(10.0)
    assert ended == []
    loop.run(0.25)
    assert len(ended) == 1


def test_a_cancelled_wait_calls_nothing(loop: HandLoop) -> None:
    ended: list[float] = []
    wait = Wait(loop, 1.0, lambda: ended.append(loop.time()))
    loop.run(0.5)
    wait.cancel()
    loop.run(5.0)
    assert ended == []


@given(
    delay_s=st.floats(0.0, 20.0),
    parts=st.lists(st.tuples(st.booleans(), st.floats(0.0, 8.0)), max_size=20),
)
def test_a_wait_never_ends_before_its_process_has_run_so_long(
    delay_s: float, parts: list[tuple[bool, float]]
) -> None:
    loop = HandLoop()
    ended: list[float] = []
    Wait(loop, delay_s, lambda: ended.append(loop.time()))
    ran_s = 0.0
    for is_running, seconds in parts:
        if is_running:
            loop.run(seconds)
            ran_s += seconds
        else:
            # A stop shorter than a second cannot be told from a busy loop.
            loop.stand_still(1.25 + seconds)
        if ended:
            break
    loop.close()
    assert not ended or ran_s >= delay_s - 1e-6


async def test_what_is_done_in_time_keeps_its_result() -> None:
    async with patience(60.0):
        await asyncio.sleep(0)


async def test_what_is_not_done_in_time_is_ended() -> None:
    with pytest.raises(TimeoutError):
        async with patience(0.0):
            await asyncio.Event().wait()
