"""The metrics that models keep themselves, of all workers together. Pure.

Counters and histograms add up over instances and workers, and over those that there
were before: what a source had when it ended is kept for its version. Of a gauge the
value holds that came last, and it goes with its source. A family is shown while its
version has it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from services.control.model_registry import VersionKey, Worker
from services.control.prometheus import Family, Sample

_GAUGE: Final = "gauge"
_BOUND: Final = "le"
# Of processes that were lost and do not come back, so many sources are told apart.
MOST_LOST: Final = 256

Families: TypeAlias = tuple[Family, ...]
Source: TypeAlias = tuple[str, int]
"""A process, and the number that it has given a source."""
_Labels: TypeAlias = frozenset[tuple[str, str]]
_Lines: TypeAlias = dict[tuple[str, str], Sample]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMetrics:
    """What one source of a worker showed last.

    Attributes:
        version: Whose it is.
        families: All of them.
        is_lost: Its worker has no stream: it may come back, and says it all again.
    """

    version: VersionKey
    families: Families
    is_lost: bool = False


@dataclass(slots=True, eq=False)
class ModelMetrics:
    """What each source showed last, the latest at the end.

    Attributes:
        sources: Those that have not ended.
        ended: What the others had, by version.
    """

    sources: dict[Source, ShownMetrics] = field(default_factory=dict)
    ended: dict[VersionKey, Families] = field(default_factory=dict)

    def take(self, source: Source, version: VersionKey, families: Families) -> None:
        """Replace what a source showed; with nothing, it has ended."""
        before = self.sources.pop(source, None)
        if before is not None:
            self._keep(before.version, _given_up(before.families, families))
        if families:
            self.sources[source] = ShownMetrics(version=version, families=families)

    def lose(self, process: str) -> None:
        """Show no more of a process, until it says it all again."""
        for source in self._sources_of(process):
            self.sources[source] = replace(self.sources[source], is_lost=True)
        lost = [key for key, shown in self.sources.items() if shown.is_lost]
        for source in lost[:-MOST_LOST]:
            self._end(source)

    def end(self, process: str) -> None:
        """Take note that a process has ended, with all its sources."""
        for source in self._sources_of(process):
            self._end(source)

    def end_before(self, worker: Worker) -> None:
        """End the processes that had the id of ``worker`` before it."""
        for source in list(self.sources):
            if worker.succeeds(source[0]):
                self._end(source)

    def reset(self, model: str) -> None:
        """Have the counters and histograms of a model begin at zero."""
        for key in [key for key in self.ended if key[0] == model]:
            del self.ended[key]
        for shown in self.sources.values():
            if shown.version[0] == model:
                self._keep(shown.version, tuple(map(_negative, shown.families)))

    def families(self, taken: Iterable[str] = ()) -> list[Family]:
        """Return all families together; none of the names ``taken``."""
        sources = self.sources.values()
        living = [each for each in sources if not each.is_lost]
        names = {(each.version, one.name) for each in living for one in each.families}

        def seen(version: VersionKey, families: Families, *, lives: bool) -> Families:
            return tuple(
                family
                for family in families
                if (lives if family.kind == _GAUGE else (version, family.name) in names)
            )

        present = [
            seen(each.version, each.families, lives=not each.is_lost)
            for each in sources
        ]
        past = [seen(key, each, lives=False) for key, each in self.ended.items()]
        return merged(present + past, frozenset(taken))

    def families_of(self, process: str) -> list[Family]:
        """Return the families of one worker's process."""
        own = (self.sources[source].families for source in self._sources_of(process))
        return merged(own, frozenset())

    def _sources_of(self, process: str) -> list[Source]:
        return [source for source in self.sources if source[0] == process]

    def _end(self, source: Source) -> None:
        shown = self.sources.pop(source)
        self._keep(shown.version, shown.families)

    def _keep(self, version: VersionKey, families: Families) -> None:
        kept = tuple(family for family in families if family.kind != _GAUGE)
        if kept:
            both = (kept, self.ended.get(version, ()))
            self.ended[version] = tuple(merged(both, frozenset()))


def merged(shown: Iterable[Families], taken: frozenset[str]) -> list[Family]:
    """Return families as one page may have them: each name, each series once.

    Of a name the first kind and text hold, of a histogram the first buckets; who
    means others is left out.
    """
    found: dict[str, _Merging] = {}
    for families in shown:
        for family in families:
            if family.name in taken:
                continue
            merging = found.setdefault(family.name, _Merging(first=family))
            if family.kind == merging.first.kind:
                merging.add(family)
    return [merging.family() for merging in found.values()]


@dataclass(slots=True, kw_only=True)
class _Merging:
    first: Family
    series: dict[_Labels, _Lines] = field(default_factory=dict)

    def add(self, family: Family) -> None:
        for labels, lines in _series(family).items():
            before = self.series.get(labels)
            if before is None or family.kind == _GAUGE:
                self.series[labels] = lines
            elif before.keys() == lines.keys():
                self.series[labels] = {
                    line: replace(one, value=one.value + lines[line].value)
                    for line, one in before.items()
                }

    def family(self) -> Family:
        return _with(self.first, self.series.values())


def _series(family: Family) -> dict[_Labels, _Lines]:
    """Return the samples by the labels of their series: a histogram's together."""
    series: dict[_Labels, _Lines] = {}
    for sample in family.samples:
        labels = frozenset((k, v) for k, v in sample.labels.items() if k != _BOUND)
        line = sample.suffix, sample.labels.get(_BOUND, "")
        series.setdefault(labels, {})[line] = sample
    return series


def _given_up(before: Families, now: Families) -> Families:
    """Return the series of ``before`` that ``now`` lacks, or began anew."""
    later = {(each.name, each.kind): _series(each) for each in now}
    gone = []
    for family in before:
        after = later.get((family.name, family.kind), {})
        lines = [
            lines
            for labels, lines in _series(family).items()
            if not _goes_on(lines, after.get(labels, {}))
        ]
        gone.append(_with(family, lines))
    return tuple(family for family in gone if family.samples)


def _goes_on(lines: _Lines, after: _Lines) -> bool:
    """Whether a series only grew. A sum may shrink: of negative observations."""
    return all(
        line in after and (line[0] == "_sum" or after[line].value >= sample.value)
        for line, sample in lines.items()
    )


def _with(family: Family, series: Iterable[_Lines]) -> Family:
    samples = tuple(one for lines in series for one in lines.values())
    return replace(family, samples=samples)


def _negative(family: Family) -> Family:
    samples = tuple(replace(one, value=-one.value) for one in family.samples)
    return replace(family, samples=samples)
