"""The outlets of one stream to a router. Pure."""

from collections.abc import Callable

from services.worker.outlet import Outlet


class Outlets:
    """The ways back of a stream's batches, by their numbers.

    The router may speak of a batch that has come and is not begun: then its outlet
    is there before it is opened, and remembers what was said.
    """

    __slots__ = ("_begun", "_early", "_is_lost", "_open")

    def __init__(self) -> None:
        """Begin with none."""
        self._begun = 0
        self._is_lost = False
        self._early: dict[int, Outlet] = {}
        self._open: dict[int, Outlet] = {}

    def __len__(self) -> int:
        """Return how many batches may still be answered."""
        return len(self._open)

    def open(self, number: int, make: Callable[[int], Outlet]) -> Outlet:
        """Return the outlet of a batch that begins; ``make`` makes it."""
        self._begun = number + 1
        outlet = self._early.pop(number, None) or make(number)
        self._open[number] = outlet
        if self._is_lost:
            outlet.cancel_all()
        return outlet

    def of(self, number: int, make: Callable[[int], Outlet]) -> Outlet | None:
        """Return the outlet of a batch; None if it has had all its answers."""
        if number < self._begun:
            return self._open.get(number)
        if number not in self._early:
            self._early[number] = make(number)
        return self._early[number]

    def close(self, number: int) -> None:
        """Forget a batch that has had all its answers."""
        del self._open[number]

    def cancel_all(self) -> None:
        """Tell that nobody waits for anything: the stream has ended."""
        self._is_lost = True
        for outlet in tuple(self._open.values()):
            outlet.cancel_all()
