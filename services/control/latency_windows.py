"""Distributions of the last minute, for quantiles. Pure.

Source: Prometheus' summaries have a sliding window; Triton's is a minute long.
"""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from services.control.model_registry import VersionKey
from services.control.statistics_totals import Latencies
from services.core.latency_buckets import quantile
from services.core.statistics_fields import Phase

WINDOW_NS: Final = 60_000_000_000
_SLICES: Final = 6
_SLICE_NS: Final = WINDOW_NS // _SLICES

_Counts = dict[tuple[VersionKey, Phase], Counter[int]]


class LatencyWindows:
    """What was reported in the last minute, forgotten in steps of ten seconds."""

    def __init__(self) -> None:
        """Begin empty."""
        self._slices: deque[tuple[int, _Counts]] = deque()

    def add(self, latencies: Iterable[Latencies], now_ns: int) -> None:
        """Take in a part of a report.

        Args:
            latencies: Of any versions and phases.
            now_ns: Monotonic, never less than in an earlier call.
        """
        self._forget(now_ns)
        number = now_ns // _SLICE_NS
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, {}))
        counts = self._slices[-1][1]
        for each in latencies:
            key = (each.version, each.phase)
            counts.setdefault(key, Counter()).update(each.counts)

    def quantiles(
        self, version: VersionKey, phase: Phase, fractions: Iterable[float], now_ns: int
    ) -> list[float | None]:
        """Return the duration at each of ``fractions``, ns; None without any."""
        self._forget(now_ns)
        total: Counter[int] = Counter()
        for _, counts in self._slices:
            total.update(counts.get((version, phase), {}))
        return [quantile(total, fraction) for fraction in fractions]

    def _forget(self, now_ns: int) -> None:
        oldest = now_ns // _SLICE_NS - _SLICES
        while self._slices and self._slices[0][0] <= oldest:
            self._slices.popleft()
