"""New routes, until each has an instance that could answer. Pure.

A worker says that it has loaded a model while its streams to the routers are still
being opened: whoever was told that the model is loaded would be told by a router,
for a moment, that it is not ready.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Wait:
    generations: set[int]
    then: Callable[[], None]


class FirstInstances:
    """Waits until new routes can be called, or are gone."""

    def __init__(self, is_missing: Callable[[int], bool]) -> None:
        """Begin with nothing to wait for.

        Args:
            is_missing: Whether a generation is routed to and has no instance.
        """
        self._is_missing = is_missing
        self._waits: list[_Wait] = []

    def when_there(
        self, generations: Collection[int], then: Callable[[], None]
    ) -> None:
        """Call ``then`` once none of ``generations`` lacks an instance."""
        self._waits.append(_Wait(set(generations), then))
        self.look()

    def look(self) -> None:
        """Look again: an instance may have joined, a route may have gone."""
        due = []
        for wait in self._waits:
            # One that has come once is not waited for again.
            wait.generations = set(filter(self._is_missing, wait.generations))
            if not wait.generations:
                due.append(wait)
        self._waits = [wait for wait in self._waits if wait.generations]
        for wait in due:
            wait.then()
