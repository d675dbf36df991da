"""How much waits for a slow reader, and which models are to wait for it. Pure.

What has not been read of a model's responses must stay somewhere: a little on each
stretch of the way, all else with the model, which is made to wait.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

MOST_BYTES: Final = 4 << 20
ENOUGH_BYTES: Final = 2 << 20

Pace: TypeAlias = Callable[[bool], None]
"""Has the model that answers a request pause: True, or go on: False."""


class Backlog:
    """The responses that one stream has not sent yet.

    They all wait for the same reader, so all requests that are answered while too
    much waits are paused, and go on together.
    """

    __slots__ = ("_paused", "_unsent_bytes")

    def __init__(self) -> None:
        """Begin with nothing."""
        self._unsent_bytes = 0
        self._paused: dict[Pace, None] = {}

    @property
    def is_long(self) -> bool:
        """Whether so much waits that nobody should add to it."""
        return self._unsent_bytes > MOST_BYTES

    def add(self, size_bytes: int, pace: Pace | None) -> None:
        """Note a response that waits; ``pace`` reaches the model that gave it."""
        self._unsent_bytes += size_bytes
        if self.is_long and pace is not None and pace not in self._paused:
            self._paused[pace] = None
            pace(True)  # noqa: FBT003 - a callback

    def take(self, size_bytes: int) -> None:
        """Note that a response is on its way."""
        self._unsent_bytes -= size_bytes
        if self._paused and self._unsent_bytes < ENOUGH_BYTES:
            paused, self._paused = self._paused, {}
            for pace in paused:
                pace(False)  # noqa: FBT003 - a callback
