"""What a router says while a batch is executed, heard at once."""

import queue
import threading
from collections.abc import Callable


class Hearing:
    """A thread that receives, does what needs no execution and puts the rest aside."""

    def __init__(
        self,
        name: str,
        receive: Callable[[], bytes | None],
        heed: Callable[[bytes], bool],
    ) -> None:
        """Begin to hear.

        Args:
            name: Of the thread.
            receive: Waits for the next message; None when there will be no more.
            heed: Does what a message says; False: it has to wait for its turn.
        """
        self._receive = receive
        self._heed = heed
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._hear, name=name, daemon=True)
        self._thread.start()

    def next(self) -> bytes | None:
        """Wait for the next message that was put aside; None behind the last."""
        return self._waiting.get()

    def join(self) -> None:
        """Return when there is nothing more to hear."""
        self._thread.join()

    def _hear(self) -> None:
        try:
            while (message := self._receive()) is not None:
                if not self._heed(message):
                    self._waiting.put(message)
                # It may be huge, and the next may be long in coming.
                message = b""
        finally:
            self._waiting.put(None)
