"""Threads in which a decoupled test backend answers, one for each request."""

import threading
from collections.abc import Callable


class ResponseThreads:
    """The threads of one instance."""

    def __init__(self, name: str) -> None:
        """Begin with none; ``name`` is the instance's."""
        self._name = name
        self._changed = threading.Condition()
        self._running = 0
        self._closing = threading.Event()

    def start(self, answer: Callable[[], None]) -> None:
        """Call ``answer`` in a thread of its own."""
        with self._changed:
            self._running += 1
        thread = threading.Thread(
            target=self._run,
            args=(answer,),
            name=f"{self._name} responses",
            daemon=True,
        )
        thread.start()

    def pause(self, seconds: float) -> bool:
        """Wait; return at once with False if the instance is being unloaded."""
        if seconds <= 0:
            return not self._closing.is_set()
        return not self._closing.wait(seconds)

    def close(self) -> None:
        """End all pauses, and return when all threads have ended."""
        self._closing.set()
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0)

    def _run(self, answer: Callable[[], None]) -> None:
        try:
            answer()
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()
