"""The metrics that models keep themselves, of all workers together. Pure.

Counters and histograms add up over instances and workers; of a gauge the value holds
that came last. What an instance showed goes with it.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from services.control.prometheus import Family, Sample

_GAUGE = "gauge"


@dataclass(slots=True, eq=False)
class ModelMetrics:
    """What each source of each worker showed last, the latest at the end."""

    _sources: dict[tuple[Hashable, int], tuple[Family, ...]] = field(
        default_factory=dict
    )

    def take(self, worker: Hashable, source: int, families: tuple[Family, ...]) -> None:
        """Replace what a source of ``worker`` showed; nothing if it is gone."""
        self._sources.pop((worker, source), None)
        if families:
            self._sources[worker, source] = families

    def forget(self, worker: Hashable) -> None:
        """Forget all that a worker showed."""
        for key in [key for key in self._sources if key[0] == worker]:
            del self._sources[key]

    def families(self, taken: Iterable[str] = ()) -> list[Family]:
        """Return all families together; none of the names ``taken``."""
        return merged(self._sources.values(), frozenset(taken))

    def families_of(self, worker: Hashable) -> list[Family]:
        """Return the families of one worker."""
        own = (shown for key, shown in self._sources.items() if key[0] == worker)
        return merged(own, frozenset())


def merged(shown: Iterable[tuple[Family, ...]], taken: frozenset[str]) -> list[Family]:
    """Return families as one page may have them: each name, each series once.

    Of a name the first kind and text hold; who means another kind is left out.
    """
    found: dict[str, _Merging] = {}
    for families in shown:
        for family in families:
            if family.name in taken:
                continue
            merging = found.setdefault(family.name, _Merging(first=family))
            if family.kind == merging.first.kind:
                merging.add(family.samples)
    return [merging.family() for merging in found.values()]


@dataclass(slots=True, kw_only=True)
class _Merging:
    first: Family
    samples: dict[tuple[str, frozenset[tuple[str, str]]], Sample] = field(
        default_factory=dict
    )

    def add(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            key = sample.suffix, frozenset(sample.labels.items())
            before = self.samples.get(key)
            if before is None or self.first.kind == _GAUGE:
                self.samples[key] = sample
            else:
                total = before.value + sample.value
                self.samples[key] = Sample(
                    labels=before.labels, value=total, suffix=before.suffix
                )

    def family(self) -> Family:
        return Family(
            name=self.first.name,
            text=self.first.text,
            kind=self.first.kind,
            samples=tuple(_by_series(self.samples)),
        )


def _by_series(
    samples: Mapping[tuple[str, frozenset[tuple[str, str]]], Sample],
) -> Iterator[Sample]:
    """Yield the samples, the lines of one histogram together."""
    series: dict[frozenset[tuple[str, str]], list[Sample]] = {}
    for sample in samples.values():
        key = frozenset((k, v) for k, v in sample.labels.items() if k != "le")
        series.setdefault(key, []).append(sample)
    for lines in series.values():
        yield from lines
