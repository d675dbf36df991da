"""Where the streamed replies to one batch go."""

import enum
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

OfStream: TypeAlias = Callable[[bool], None]
Pace: TypeAlias = Callable[[int, bool], None]
"""Is told of a request's place, and whether it is paused: True, or goes on: False."""


class Cause(enum.Enum):
    """Why a request is paused."""

    READER = enum.auto()
    STREAM = enum.auto()


class Outlet:
    """One batch's way back to the router it came from, for any thread.

    Attributes:
        number: Of the batch on its stream.
    """

    __slots__ = (
        "_cancel",
        "_cancelled",
        "_close",
        "_is_lost",
        "_lock",
        "_now_ns",
        "_of_stream",
        "_pace",
        "_paced",
        "_paused",
        "_paused_since_ns",
        "_places",
        "_room",
        "_send",
        "_telling",
        "_waited_ns",
        "number",
    )

    def __init__(
        self,
        number: int,
        *,
        send: Callable[[bytes, OfStream], None],
        close: Callable[[], None],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Know the stream.

        Args:
            number: Of the batch on its stream.
            send: Sends a message; drops it when the stream has ended. Is given what
                to tell while the stream is slower than the answers come.
            close: Is told that nothing more comes.
            now_ns: The monotonic clock.
        """
        self.number = number
        self._send = send
        self._close = close
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        # Held while pauses are passed on, which keeps them in order.
        self._telling = threading.Lock()
        self._cancel: Callable[[int], None] | None = None
        self._places: Sequence[int] = ()
        self._cancelled: set[int] = set()
        self._is_lost = False
        self._pace: Pace | None = None
        self._paced: Sequence[int] = ()
        self._paused: dict[int, set[Cause]] = {}
        self._of_stream: dict[int, OfStream] = {}
        self._paused_since_ns = 0
        self._waited_ns = 0

    def send(self, message: bytes, place: int) -> None:
        """Send a BatchResponse with a streamed reply to a request; never blocks."""
        self._send(message, self._pace_of(place))

    def close(self) -> None:
        """Say, once, that nothing more comes for any request."""
        self._close()

    def on_cancel(self, places: Sequence[int], cancel: Callable[[int], None]) -> None:
        """Have ``cancel`` called with each of ``places`` that nobody waits for."""
        with self._lock:
            self._cancel, self._places = cancel, places
            early = [place for place in places if place in self._cancelled]
            is_lost = self._is_lost
        for place in early:
            cancel(place)
        if is_lost:
            self.cancel_all()

    def cancel(self, place: int) -> None:
        """Tell that nobody waits for the request at this place of the batch."""
        with self._lock:
            if place in self._cancelled:
                return
            self._cancelled.add(place)
            self._discard(place)
            cancel = self._cancel if place in self._places else None
        if cancel is not None:
            cancel(place)

    def cancel_all(self) -> None:
        """Tell that nobody waits for anything: the stream has ended."""
        with self._lock:
            self._is_lost = True
            places = (*self._places, *self._paused)
        for place in places:
            self.cancel(place)

    def on_pause(self, places: Sequence[int], pace: Pace) -> None:
        """Have ``pace`` told of each of ``places`` whose reader is slow."""
        with self._telling:
            with self._lock:
                self._pace, self._paced = pace, places
                early = [place for place in places if place in self._paused]
            for place in early:
                pace(place, True)  # noqa: FBT003 - a callback

    def pause(self, place: int, cause: Cause = Cause.READER) -> None:
        """Tell that this request is answered faster than its answers are taken."""
        with self._telling:
            with self._lock:
                was_paused = place in self._paused
                if self._is_lost or place in self._cancelled:
                    return
                if not self._paused:
                    self._paused_since_ns = self._now_ns()
                self._paused.setdefault(place, set()).add(cause)
                pace = None if was_paused else self._pace
            if pace is not None and place in self._paced:
                pace(place, True)  # noqa: FBT003 - a callback

    def resume(self, place: int, cause: Cause = Cause.READER) -> None:
        """Tell that what was slow has caught up."""
        with self._telling:
            with self._lock:
                causes = self._paused.get(place)
                if causes is None:
                    return
                causes.discard(cause)
                if causes:
                    return
                self._discard(place)
                pace = self._pace
            if pace is not None and place in self._paced:
                pace(place, False)  # noqa: FBT003 - a callback

    def wait_for_room(self, place: int) -> None:
        """Return as soon as the request at this place is not paused."""
        with self._room:
            self._room.wait_for(lambda: place not in self._paused)

    def waited_ns(self) -> int:
        """Return how long, in all, any of the requests has been paused."""
        with self._lock:
            if not self._paused:
                return self._waited_ns
            return self._waited_ns + self._now_ns() - self._paused_since_ns

    def _pace_of(self, place: int) -> OfStream:
        """Return what the stream tells of a request, always the same."""
        found = self._of_stream.get(place)
        if found is None:
            new = partial(self._stream_is_slow, place)
            found = self._of_stream.setdefault(place, new)
        return found

    def _stream_is_slow(self, place: int, is_slow: bool) -> None:  # noqa: FBT001 - a callback
        if is_slow:
            self.pause(place, Cause.STREAM)
        else:
            self.resume(place, Cause.STREAM)

    def _discard(self, place: int) -> None:
        """Let a request go on; with the lock held."""
        if self._paused.pop(place, None) is None:
            return
        self._room.notify_all()
        if not self._paused:
            self._waited_ns += self._now_ns() - self._paused_since_ns
