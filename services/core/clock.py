"""Time as an object, so that every decision takes it as an argument."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time; tests bring their own."""

    def now_ns(self) -> int:
        """Return monotonic nanoseconds; never less than before."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        """Return ``time.monotonic_ns()``."""
        return time.monotonic_ns()
