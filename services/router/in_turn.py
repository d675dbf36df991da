"""Callbacks in the order in which they were promised. Pure."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Turn:
    then: Callable[[], None]
    is_due: bool = False


class InTurn:
    """A line: who comes due before those in front waits for them."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._line: deque[_Turn] = deque()

    def promise(self, then: Callable[[], None]) -> Callable[[], None]:
        """Return what is to be called when ``then`` is due."""
        turn = _Turn(then)
        self._line.append(turn)

        def due() -> None:
            turn.is_due = True
            while self._line and self._line[0].is_due:
                self._line.popleft().then()

        return due
