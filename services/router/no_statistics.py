"""Statistics that are switched off. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.core.statistics_fields import (
    FailureReason,
    Phase,
    ResponsePhase,
    ShadowOutcome,
)
from services.router.statistics import Increments, Latencies, ModelStatistics


@dataclass(slots=True)
class NoStatistics(ModelStatistics):
    """Counts nothing of what it is told; see ModelStatistics."""

    def executed(
        self,
        *,
        batch_rows: int,
        rows: int,
        requests: int,
        queue_ns: int,
        success_ns: int,
        timing: tuple[int, int, int],
        at_ms: int,
    ) -> None:
        """Take no notice."""

    def failed(self, ns: int, reason: FailureReason = FailureReason.OTHER) -> None:
        """Take no notice."""

    def retried(self, requests: int) -> None:
        """Take no notice."""

    def lost(self, *, quarantined: int) -> None:
        """Take no notice."""

    def shadowed(self, outcome: ShadowOutcome) -> None:
        """Take no notice."""

    def took(
        self,
        latencies: dict[Phase, Latencies],
        durations: Iterable[tuple[int, int]],
        timing: tuple[int, int, int],
    ) -> None:
        """Take no notice."""

    def answered_from_cache(
        self, *, lookup_ns: int, queue_ns: int, success_ns: int, at_ms: int
    ) -> None:
        """Take no notice."""

    def missed_cache(self, ns: int) -> None:
        """Take no notice."""

    def streamed(
        self, *, rows: int, queue_ns: int, success_ns: int, at_ms: int
    ) -> None:
        """Take no notice."""

    def computed(self, timing: tuple[int, int, int]) -> None:
        """Take no notice."""

    def responded(self, index: int, durations: Mapping[ResponsePhase, int]) -> None:
        """Take no notice."""

    def first_response(self, ns: int) -> None:
        """Take no notice."""

    def distribute(self, *, is_wanted: bool) -> None:
        """Keep no distributions."""

    def take(self) -> Increments | None:
        """Return None: nothing was counted."""
        return None
