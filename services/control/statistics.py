"""The statistics of the whole stack: what routers report, kept in the store.

A report is applied to the store, then acknowledged. While the store is away reports
wait here in order, and readers get what was last read and what waits.
"""

import asyncio
import contextlib
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Never

import structlog

from services.control.commands import (
    AcknowledgeStatistics,
    CollectStatistics,
    SetStatistics,
)
from services.control.latency_windows import LatencyWindows
from services.control.metrics_settings import MetricsSettings
from services.control.model_registry import VersionKey
from services.control.router_links import RouterLink, RouterLinks
from services.control.statistics_totals import (
    STACK,
    CacheState,
    Counted,
    RouterCounts,
    StatisticsReport,
    sum_of,
)
from services.control.store import Store, StoreAwayError
from services.core.clock import Clock
from services.core.errors import ModelNotReadyError

_log = structlog.get_logger(__name__)

# Of a read: longer than a router that lives takes, shorter than a client waits.
COLLECTION_TIMEOUT_S: Final = 1.0
_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 5.0


class Statistics:
    """Takes in the routers' reports and answers what was counted in all."""

    def __init__(
        self,
        store: Store,
        routers: RouterLinks,
        clock: Clock,
        metrics: MetricsSettings | None = None,
    ) -> None:
        """Begin without any report.

        Args:
            store: Keeps the counters.
            routers: Who is asked before a read.
            clock: For the sliding windows.
            metrics: What will be shown of them.
        """
        self.metrics = metrics or MetricsSettings()
        self.windows = LatencyWindows()
        self._store = store
        self._routers = routers
        self._clock = clock
        self._pending: deque[tuple[str, StatisticsReport]] = deque()
        self._own_name = f"control {uuid.uuid4().hex}"
        self._own_sequence = 0
        self._taken: dict[str, int] = {}
        self._applied: dict[str, int] = {}
        self._waiting: dict[str, Mapping[VersionKey, int]] = {}
        self._lags_ns: dict[str, int] = {}
        self._caches: dict[str, CacheState] = {}
        self._by_router: dict[str, dict[VersionKey, Counted]] = {}
        self._collections: dict[str, int] = {}
        self._last_collection = 0
        # What the store has, as far as we know: None until it was read once.
        self._known: dict[VersionKey, Counted] | None = None
        self._is_away = False
        # Held while the store and what is pending do not fit together.
        self._in_step = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def order(self) -> SetStatistics:
        """What routers are told to count."""
        return SetStatistics(latency_distributions=self.metrics.summary_latencies)

    def take(self, router_id: str, report: StatisticsReport) -> None:
        """Take in a report; one that came before is not counted again."""
        self._waiting[router_id] = report.waiting
        self._lags_ns[router_id] = report.loop_lag_ns
        if report.cache is not None:
            self._caches[router_id] = report.cache
        answered = self._collections.get(router_id, 0)
        self._collections[router_id] = max(answered, report.collection)
        if report.sequence > self._taken.get(router_id, 0):
            self._taken[router_id] = report.sequence
            before = self._by_router.get(router_id, {})
            self._by_router[router_id] = sum_of((before, report.increments))
            self._pending.append((router_id, report))
            self.windows.add(report.latencies, self._clock.now_ns())
        elif report.sequence:
            self._acknowledge(router_id)
        self._notice()

    def count(self, field: str) -> None:
        """Count once what control itself has seen, of the whole stack."""
        self._own_sequence += 1
        report = StatisticsReport(
            sequence=self._own_sequence,
            increments={STACK: Counted(counts={field: 1})},
        )
        self._pending.append((self._own_name, report))
        self._notice()

    def forget_gauges(self, router_id: str) -> None:
        """Drop what a router that left held; what it counted stays."""
        for gauges in (
            self._waiting,
            self._lags_ns,
            self._caches,
            self._collections,
            self._by_router,
        ):
            gauges.pop(router_id, None)
        self._notice()

    def waiting(self) -> dict[VersionKey, int]:
        """Return how many requests wait for execution in all routers."""
        totals: dict[VersionKey, int] = {}
        for counts in self._waiting.values():
            for key, count in counts.items():
                totals[key] = totals.get(key, 0) + count
        return totals

    def loop_lags_s(self) -> dict[str, float]:
        """Return how late each router's loop was, at worst since its last report."""
        return {router: ns / 1e9 for router, ns in self._lags_ns.items()}

    def cache(self) -> CacheState | None:
        """Return the caches of all routers together; None if none has one."""
        caches = self._caches.values()
        return sum(caches, start=CacheState()) if caches else None

    def of_router(self, router_id: str) -> RouterCounts:
        """Return what one router counted since control knows it, and holds now."""
        waiting = self._waiting.get(router_id, {})
        totals = self._by_router.get(router_id, {})
        keys = {*waiting, *totals}
        return RouterCounts(
            totals={key: totals.get(key, Counted()) for key in keys},
            waiting={key: waiting.get(key, 0) for key in keys},
            loop_lag_ns=self._lags_ns.get(router_id, 0),
            cache=self._caches.get(router_id),
        )

    async def totals(self) -> dict[VersionKey, Counted]:
        """Return all that was counted until now, as far as anybody can know."""
        await self.collect()
        async with self._in_step:
            if not (self._is_away and self._pending):
                try:
                    self._known = await self._store.totals()
                    self._is_away = False
                except StoreAwayError as error:
                    self._note_away(error)
            waiting = (report.increments for _, report in self._pending)
            return sum_of((self._known or {}, *waiting))

    async def reset(self, model: str) -> tuple[int, ...]:
        """Set the counters of a model to zero; return its versions that had any.

        Raises:
            ModelNotReadyError: the store is away, and nothing was reset.
        """
        await self.collect()
        async with self._in_step:
            if self._pending:
                raise ModelNotReadyError("the store is away; nothing was reset")
            try:
                versions = await self._store.reset(model)
            except StoreAwayError as error:
                raise ModelNotReadyError(f"the store is away: {error}") from error
            self._known = None
        return versions

    async def run(self) -> Never:
        """Apply what comes, until cancelled."""
        delay_s = _FIRST_DELAY_S
        while True:
            while not self._pending:
                await self._changed.wait()
            try:
                await self._apply_pending()
            except StoreAwayError as error:
                self._note_away(error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
            else:
                delay_s = _FIRST_DELAY_S

    async def flush(self) -> None:
        """Apply what is here, if that is possible now."""
        with contextlib.suppress(StoreAwayError):
            await self._apply_pending()

    async def _apply_pending(self) -> None:
        """Apply everything that is pending.

        Raises:
            StoreAwayError: not everything was applied.
        """
        while self._pending:
            async with self._in_step:
                if self._known is None:
                    self._known = await self._store.totals()
                router_id, report = self._pending[0]
                if await self._store.apply(router_id, report):
                    self._known = sum_of((self._known, report.increments))
                else:
                    # Perhaps by ourselves, without hearing of it.
                    self._known = await self._store.totals()
                self._pending.popleft()
                self._applied[router_id] = report.sequence
            self._is_away = False
            self._acknowledge(router_id)
            self._notice()

    async def collect(self) -> None:
        """Have all routers report, and what they report applied, if that is quick."""
        self._last_collection += 1
        number = self._last_collection
        asked = self._routers.links()
        for link in asked:
            link.tell(CollectStatistics(collection=number))

        def is_complete() -> bool:
            answered = all(self._has_answered(link, number) for link in asked)
            return answered and (self._is_away or not self._pending)

        await self._until(is_complete)

    def _has_answered(self, link: RouterLink, number: int) -> bool:
        is_here = any(other is link for other in self._routers.links())
        return not is_here or self._collections.get(link.router_id, 0) >= number

    async def _until(self, is_true: Callable[[], bool]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COLLECTION_TIMEOUT_S):
                while not is_true():
                    await self._changed.wait()

    def _acknowledge(self, router_id: str) -> None:
        """Tell a router what is safe; it may have dialled again meanwhile."""
        sequence = self._applied.get(router_id, 0)
        for link in self._routers.links():
            if link.router_id == router_id and sequence:
                link.tell(AcknowledgeStatistics(sequence=sequence))

    def _note_away(self, error: StoreAwayError) -> None:
        if not self._is_away:
            _log.warning("the store is away; statistics wait here", reason=str(error))
        self._is_away = True
        self._notice()

    def _notice(self) -> None:
        """Wake whoever waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()
