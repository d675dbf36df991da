"""The counters of all model versions in one router. Pure.

Generations of one version share theirs: a reload counts on.
"""

from collections.abc import Iterator

from services.core.statistics_fields import (
    FIRST_RESPONSE_BOUNDS_MS,
    FIRST_RESPONSE_FAMILY,
)
from services.router.no_statistics import NoStatistics
from services.router.route_table import Route
from services.router.statistics import Increments, ModelStatistics


class StatisticsLedger:
    """One ModelStatistics for each version that was ever served here."""

    __slots__ = ("_distributes", "_versions", "is_counting")

    def __init__(self, *, is_counting: bool = True) -> None:
        """Begin with none.

        Args:
            is_counting: False: nothing is counted, ever.
        """
        self.is_counting = is_counting
        self._versions: dict[tuple[str, int], ModelStatistics] = {}
        self._distributes = False

    def of_route(self, route: Route) -> ModelStatistics:
        """Return the counters of a route's version, with the buckets it wants."""
        counted = self.of(route.model, route.version)
        counted.first_response_bounds_ms = next(
            (
                control.histogram_buckets
                for control in route.config.metric_controls
                if control.family == FIRST_RESPONSE_FAMILY
            ),
            FIRST_RESPONSE_BOUNDS_MS,
        )
        return counted

    def of(self, model: str, version: int) -> ModelStatistics:
        """Return the counters of a version, always the same object."""
        counted = self._versions.get((model, version))
        if counted is None:
            kind = ModelStatistics if self.is_counting else NoStatistics
            counted = self._versions[model, version] = kind()
            counted.distribute(is_wanted=self._distributes)
        return counted

    def distribute(self, *, is_wanted: bool) -> None:
        """Begin or cease to count distributions, for all versions."""
        self._distributes = is_wanted
        for counted in self._versions.values():
            counted.distribute(is_wanted=is_wanted)

    def take(self) -> Iterator[tuple[str, int, Increments]]:
        """Yield model, version and what was counted since the last time."""
        for (model, version), counted in self._versions.items():
            increments = counted.take()
            if increments is not None:
                yield model, version, increments
