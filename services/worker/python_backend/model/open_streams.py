"""The requests of a decoupled model that may still be answered."""

import threading
from collections.abc import Callable
from typing import TypeAlias

from services.worker.python_backend.model.sender import ResponseStream

# A batch, and the index of a request in it.
Place: TypeAlias = tuple[int, int]
Word: TypeAlias = Callable[[ResponseStream], None]


class OpenStreams:
    """Their streams by place, and what the worker says of them; for any thread.

    Orders come another way than what is said of their requests, which may therefore
    be here first. Batches are numbered in ascending order.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._open: dict[Place, ResponseStream] = {}
        self._begun = -1
        self._early: list[tuple[Place, Word]] = []

    def begin(self, batch: int, streams: list[ResponseStream]) -> None:
        """Take in the requests of a batch, in their order."""
        with self._lock:
            self._begun = batch
            for index, stream in enumerate(streams):
                self._open[batch, index] = stream
            early, self._early = self._early, []
            for place, word in early:
                self._tell(place, word)

    def tell(self, place: Place, word: Word) -> None:
        """Have ``word`` called with the stream at this place, now or when it comes.

        In the order of what is said, and so under a lock: it must not wait.
        """
        with self._lock:
            self._tell(place, word)

    def forget(self, place: Place) -> None:
        """Drop a request that has had its last answer."""
        with self._lock:
            self._open.pop(place, None)

    def tell_all(self, word: Word) -> None:
        """Call ``word`` with every stream."""
        with self._lock:
            for stream in self._open.values():
                word(stream)

    def _tell(self, place: Place, word: Word) -> None:
        stream = self._open.get(place)
        if stream is not None:
            word(stream)
        elif place[0] > self._begun:
            self._early.append((place, word))
