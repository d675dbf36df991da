"""A client's traced request and all that was asked for its sake. Pure."""

from collections.abc import Callable


class TraceTree:
    """Knows when the last of it has ended."""

    __slots__ = ("_on_complete", "_under_way", "keys")

    def __init__(self, on_complete: Callable[[], None]) -> None:
        """Begin with nobody under way.

        Args:
            on_complete: Called when nobody is any more.
        """
        self._on_complete = on_complete
        self._under_way = 0
        # Of those that others can become part of: see NestedTraces.
        self.keys: list[str] = []

    def began(self) -> None:
        """Expect the end of one more request."""
        self._under_way += 1

    def ended(self) -> None:
        """Note the end of one."""
        self._under_way -= 1
        if not self._under_way:
            self._on_complete()
