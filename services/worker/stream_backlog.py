"""What a stream to a router has not sent yet, for the threads of its models."""

import threading
from functools import partial

from services.core.backlog import Backlog, Pace
from services.worker.router_stream import Stream


class StreamBacklog:
    """Has models pause that answer faster than their stream sends."""

    def __init__(self, stream: Stream) -> None:
        """Begin with nothing on ``stream``."""
        self._stream = stream
        self._backlog = Backlog()
        # Held while models are told, which keeps that in order; nothing waits in it.
        self._lock = threading.Lock()

    def send(self, message: bytes, pace: Pace) -> None:
        """Send a response; never blocks. ``pace`` reaches the model that gave it."""
        size_bytes = len(message)
        with self._lock:
            self._stream.send(message, partial(self._sent, size_bytes))
            self._backlog.add(size_bytes, pace)

    def _sent(self, size_bytes: int) -> None:
        with self._lock:
            self._backlog.take(size_bytes)
