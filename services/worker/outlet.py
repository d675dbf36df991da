"""Where the streamed replies to one batch go."""

import threading
from collections.abc import Callable, Sequence


class Outlet:
    """One batch's way back to the router it came from, for any thread.

    Attributes:
        number: Of the batch on its stream.
    """

    __slots__ = (
        "_cancel",
        "_cancelled",
        "_close",
        "_lock",
        "_places",
        "_send",
        "number",
    )

    def __init__(
        self,
        number: int,
        *,
        send: Callable[[bytes], None],
        close: Callable[[], None],
    ) -> None:
        """Know the stream.

        Args:
            number: Of the batch on its stream.
            send: Sends a message; drops it when the stream has ended.
            close: Is told that nothing more comes.
        """
        self.number = number
        self._send = send
        self._close = close
        self._lock = threading.Lock()
        self._cancel: Callable[[int], None] | None = None
        self._places: Sequence[int] = ()
        self._cancelled: set[int] = set()

    def send(self, message: bytes) -> None:
        """Send a BatchResponse with streamed replies; never blocks."""
        self._send(message)

    def close(self) -> None:
        """Say, once, that nothing more comes for any request."""
        self._close()

    def on_cancel(self, places: Sequence[int], cancel: Callable[[int], None]) -> None:
        """Have ``cancel`` called with each of ``places`` that nobody waits for."""
        with self._lock:
            self._cancel, self._places = cancel, places
            early = [place for place in places if place in self._cancelled]
        for place in early:
            cancel(place)

    def cancel(self, place: int) -> None:
        """Tell that nobody waits for the request at this place of the batch."""
        with self._lock:
            self._cancelled.add(place)
            cancel = self._cancel if place in self._places else None
        if cancel is not None:
            cancel(place)

    def cancel_all(self) -> None:
        """Tell that nobody waits for anything: the stream has ended."""
        with self._lock:
            places = self._places
        for place in places:
            self.cancel(place)
