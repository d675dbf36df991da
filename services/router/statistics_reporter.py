"""Tells control what was counted, so that each count arrives exactly once.

A report is kept until control says that it is safe, and sent again on a new stream;
its number tells control whether it has it already. Without a stream, or when very
many are not safe yet, counters grow on in the ledger: an outage costs no memory.
"""

from collections.abc import Callable, Mapping
from typing import Final

from protos import control_pb2
from services.core.process_use import process_use
from services.router.response_cache import ResponseCache
from services.router.shared_responses import SharedResponses
from services.router.statistics import Increments
from services.router.statistics_ledger import StatisticsLedger

REPORT_EVERY_NS: Final = 200_000_000
# Of three minutes in which control lives and the store does not.
MOST_UNACKNOWLEDGED: Final = 1024

Waiting = Mapping[tuple[str, int], int]


class StatisticsReporter:
    """One router's reports; all on the loop's thread."""

    def __init__(
        self,
        ledger: StatisticsLedger,
        waiting: Callable[[], Waiting],
        send: Callable[[control_pb2.RouterReport], bool],
        cache: ResponseCache | SharedResponses | None = None,
    ) -> None:
        """Report what ``ledger`` counts.

        Args:
            ledger: Is emptied into reports.
            waiting: Returns how many requests wait for execution, by version.
            send: Sends a report; False if there is no stream to send it on.
            cache: Of the router, if it has one.
        """
        self._ledger = ledger
        self._waiting = waiting
        self._send = send
        self._cache = cache
        self._last_sequence = 0
        self._unacknowledged: dict[int, control_pb2.StatisticsReport] = {}
        self._told_waiting: Waiting = {}
        self._lag_ns = 0
        self._is_cut_off = False

    @property
    def is_settled(self) -> bool:
        """Whether control has all that was ever reported."""
        return not self._unacknowledged

    def tick(self, late_ns: int) -> None:
        """Report what is new, if there is anybody to report to.

        Args:
            late_ns: How late the loop calls.
        """
        self._lag_ns = max(self._lag_ns, late_ns)
        if not self._is_cut_off:
            self._report(collection=0)

    def collect(self, collection: int) -> None:
        """Report everything at once: somebody reads."""
        self._report(collection)

    def applied(self, sequence: int) -> None:
        """Forget what control has: everything up to ``sequence``."""
        for number in [n for n in self._unacknowledged if n <= sequence]:
            del self._unacknowledged[number]

    def connected(self) -> None:
        """Send again, on a new stream, what may have been lost with the old one."""
        self._told_waiting = {}
        self._is_cut_off = False
        for report in self._unacknowledged.values():
            self._send(control_pb2.RouterReport(statistics=report))

    def _report(self, collection: int) -> None:
        waiting = self._waiting()
        is_full = len(self._unacknowledged) >= MOST_UNACKNOWLEDGED
        taken = () if is_full else self._ledger.take()
        versions = [_version(*each) for each in taken]
        if not (versions or collection or waiting != self._told_waiting):
            return
        report = control_pb2.StatisticsReport(collection=collection, versions=versions)
        if versions:
            self._last_sequence += 1
            report.sequence = self._last_sequence
            self._unacknowledged[self._last_sequence] = report
        self._tell(report, waiting)

    def _tell(self, report: control_pb2.StatisticsReport, waiting: Waiting) -> None:
        report.loop_lag_ns, self._lag_ns = self._lag_ns, 0
        if report.collection:
            report.process.CopyFrom(_process_use())
        if self._cache is not None:
            report.cache.CopyFrom(_cache_state(self._cache))
        for (model, version), count in waiting.items():
            report.waiting.add(model=model, version=version, count=count)
        self._is_cut_off = not self._send(control_pb2.RouterReport(statistics=report))
        if not self._is_cut_off:
            self._told_waiting = waiting


def _process_use() -> control_pb2.ProcessUse:
    use = process_use()
    return control_pb2.ProcessUse(
        cpu_ns=use.cpu_ns,
        resident_bytes=use.resident_bytes,
        started_ms=use.started_ms,
    )


def _cache_state(
    cache: ResponseCache | SharedResponses,
) -> control_pb2.ResponseCacheState:
    return control_pb2.ResponseCacheState(
        capacity_bytes=cache.capacity_bytes,
        size_bytes=cache.size_bytes,
        entries=len(cache),
        hits=cache.hits,
        misses=cache.misses,
        evictions=cache.evictions,
        lookup_ns=cache.lookup_ns,
        insertion_ns=cache.insertion_ns,
    )


def _version(
    model: str, version: int, increments: Increments
) -> control_pb2.VersionCounters:
    return control_pb2.VersionCounters(
        model=model,
        version=version,
        last_inference_ms=increments.last_inference_ms,
        increments=increments.counts,
        latencies=[
            control_pb2.LatencyDistribution(
                phase=phase.value, counts=latencies.counts, sum_ns=latencies.sum_ns
            )
            for phase, latencies in increments.latencies.items()
        ],
    )
