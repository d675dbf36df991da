"""Looks for clients that left, among the calls that take longer than a moment.

To see the end of a call while it is served costs a batch of its own: 5 us. Most
calls are answered sooner than anybody would want to leave, so a call is only
watched from its fifth to tenth millisecond on; a client that left before is then
noticed at once.
"""

import time
from collections.abc import Iterable
from typing import Final, Protocol

from services.core.completion_queue.reactor import Reactor

_PATIENCE_NS: Final = 5_000_000


class Watchable(Protocol):
    """A call that can be watched."""

    @property
    def open(self) -> bool:
        """Whether its client still waits."""
        ...

    def watch(self) -> None:
        """Begin to look for the client's leaving."""
        ...


class CloseWatch:
    """Has calls watched that are still open after a while."""

    __slots__ = ("_old", "_reactor", "_young")

    def __init__(self, reactor: Reactor) -> None:
        """Know no call."""
        self._reactor = reactor
        self._young: list[Watchable] = []
        self._old: list[Watchable] = []

    def add(self, calls: Iterable[Watchable]) -> None:
        """Have those of ``calls`` watched that are still open in 5 to 10 ms."""
        if not self._young and not self._old:
            self._arm()
        self._young += calls

    def _arm(self) -> None:
        self._reactor.call_roughly_at(time.monotonic_ns() + _PATIENCE_NS, self._look)

    def _look(self) -> None:
        for call in self._old:
            if call.open:
                call.watch()
        self._old, self._young = self._young, []
        if self._old:
            self._arm()
