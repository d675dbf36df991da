"""Waiting for others by one's own time.

A process that was stopped (a debugger, a suspended host, a machine that swaps) finds
its timers overdue when it runs again, and what others sent meanwhile still unread. Who
judges them by the clock judges them silent. So only time in which this process ran
counts: a wait goes on in slices, and one that ends far too late counts for nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

_SLICE_S: Final = 0.25
# A loop that is merely busy is not so late.
_LATE_S: Final = 1.0


class Timers(Protocol):
    """What is needed of an event loop."""

    def time(self) -> float:
        """Return the monotonic time in seconds."""
        ...

    def call_later(
        self, delay: float, callback: Callable[[], None], /
    ) -> asyncio.TimerHandle:
        """Call back, unless cancelled."""
        ...


class Wait:
    """A wait that has begun."""

    __slots__ = ("_act", "_due_s", "_handle", "_remaining_s", "_timers")

    def __init__(self, timers: Timers, delay_s: float, act: Callable[[], None]) -> None:
        """Begin to wait.

        Args:
            timers: The event loop.
            delay_s: How long, in time in which it ran.
            act: Called then, once.
        """
        self._timers = timers
        self._act = act
        self._remaining_s = delay_s
        self._begin_slice()

    def cancel(self) -> None:
        """Wait no longer, and call nothing."""
        self._handle.cancel()

    def _begin_slice(self) -> None:
        slice_s = min(self._remaining_s, _SLICE_S)
        self._due_s = self._timers.time() + slice_s
        self._handle = self._timers.call_later(slice_s, self._end_slice)

    def _end_slice(self) -> None:
        if self._timers.time() - self._due_s < _LATE_S:
            self._remaining_s -= _SLICE_S
        if self._remaining_s <= 0:
            self._act()
        else:
            self._begin_slice()


@contextlib.asynccontextmanager
async def patience(delay_s: float) -> AsyncIterator[None]:
    """Give what is inside so much of our own time.

    Raises:
        TimeoutError: it was not done by then.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        wait = Wait(loop, delay_s, lambda: limit.reschedule(loop.time()))
        try:
            yield
        finally:
            wait.cancel()
