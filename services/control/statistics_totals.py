"""What was counted of the model versions, as it adds up. Pure.

Source: the fields are those of ``services.core.statistics_fields``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from services.control.model_registry import VersionKey
from services.core.statistics_fields import Phase

# What concerns no model is counted under a name that none can have.
STACK: Final[VersionKey] = ("", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Counters of one version, in all or since some moment.

    Attributes:
        last_inference_ms: Since 1970; 0 if there was none.
        counts: By field; what is missing is 0.
    """

    last_inference_ms: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        """Return one counter."""
        return self.counts.get(name, 0)

    def __add__(self, other: "Counted") -> "Counted":
        """Return both together."""
        return Counted(
            last_inference_ms=max(self.last_inference_ms, other.last_inference_ms),
            counts=Counter(self.counts) + Counter(other.counts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState:
    """A router's response cache since the router started, or those of several."""

    capacity_bytes: int = 0
    size_bytes: int = 0
    entries: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    lookup_ns: int = 0
    insertion_ns: int = 0

    def __add__(self, other: "CacheState") -> "CacheState":
        """Return both together."""
        return CacheState(
            **{
                each.name: getattr(self, each.name) + getattr(other, each.name)
                for each in fields(self)
            }
        )


Totals = Mapping[VersionKey, Counted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """How many requests took how long: the buckets of ``core.latency_buckets``."""

    version: VersionKey
    phase: Phase
    counts: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsReport:
    """One report of a router.

    Attributes:
        sequence: 1 or more; 0 if it counts nothing.
        collection: The highest number of a collection that it answers; 0 for none.
        increments: Since the report before.
        latencies: The same, as distributions.
        waiting: How many requests wait for execution now, by version.
        loop_lag_ns: How late the router's loop was, at worst.
        cache: The router's response cache, if it has one.
    """

    sequence: int = 0
    collection: int = 0
    increments: Totals = field(default_factory=dict)
    latencies: tuple[Latencies, ...] = ()
    waiting: Mapping[VersionKey, int] = field(default_factory=dict)
    loop_lag_ns: int = 0
    cache: CacheState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterCounts:
    """What one router has counted since control knows it, and what it holds now."""

    totals: Totals
    waiting: Mapping[VersionKey, int]
    loop_lag_ns: int
    cache: CacheState | None


def sum_of(parts: Iterable[Totals]) -> dict[VersionKey, Counted]:
    """Return all of them together."""
    totals: dict[VersionKey, Counted] = {}
    for part in parts:
        for key, counted in part.items():
            totals[key] = totals[key] + counted if key in totals else counted
    return totals
