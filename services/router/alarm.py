"""A timer that is set to the earliest of all times asked for."""

from collections.abc import Callable

from services.core.completion_queue import Reactor, Timer


class Alarm:
    """Calls back once, at the earliest time it was asked to since the last call."""

    __slots__ = ("_callback", "_reactor", "_timer")

    def __init__(self, reactor: Reactor, callback: Callable[[], None]) -> None:
        """Call ``callback`` on the thread of ``reactor``; not before it is asked."""
        self._reactor = reactor
        self._callback = callback
        self._timer: Timer | None = None

    def ring_at(self, when_ns: int) -> None:
        """Call back at ``when_ns``, or earlier if that was asked before."""
        timer = self._timer
        if timer is not None:
            if timer.when_ns <= when_ns:
                return
            timer.cancel()
        self._timer = self._reactor.call_at(when_ns, self._due)

    def _due(self) -> None:
        self._timer = None
        self._callback()
