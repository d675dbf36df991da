"""How long to wait before dialling again."""

from typing import Final

FIRST_DELAY_S: Final = 0.1
LONGEST_DELAY_S: Final = 2.0


class Backoff:
    """Delays that double from failure to failure, up to a limit."""

    __slots__ = ("_next_s",)

    def __init__(self) -> None:
        """Begin with the shortest delay."""
        self._next_s = FIRST_DELAY_S

    @property
    def is_fresh(self) -> bool:
        """Whether nothing has failed since the beginning or the last success."""
        return self._next_s == FIRST_DELAY_S

    def after_failure(self) -> float:
        """Return the seconds to wait after a failure."""
        delay_s = self._next_s
        self._next_s = min(2 * delay_s, LONGEST_DELAY_S)
        return delay_s

    def reset(self) -> None:
        """Begin anew: the other side has answered."""
        self._next_s = FIRST_DELAY_S
