"""The whole stack's statistics: collected before a read, never lost, never twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from services.control import statistics as module
from services.control.commands import AcknowledgeStatistics, CollectStatistics
from services.control.latency_windows import WINDOW_NS, LatencyWindows
from services.control.router_links import RouterLink, RouterLinks
from services.control.statistics import Statistics
from services.control.statistics_totals import (
    CacheState,
    Counted,
    Latencies,
    StatisticsReport,
)
from services.control.store import NoStore, StoreAwayError
from services.core.clock import MonotonicClock
from services.core.errors import ModelNotReadyError
from services.core.latency_buckets import bucket_of
from services.core.statistics_fields import Phase

M1 = ("m", 1)


class PuppetStore(NoStore):
    """Can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.applied: list[int] = []

    async def apply(self, reporter: str, report: StatisticsReport) -> bool:
        self._check()
        self.applied.append(report.sequence)
        return await super().apply(reporter, report)

    async def totals(self) -> dict[tuple[str, int], Counted]:
        self._check()
        return await super().totals()

    async def reset(self, model: str) -> tuple[int, ...]:
        self._check()
        return await super().reset(model)

    def _check(self) -> None:
        if self.is_away:
            raise StoreAwayError("gone")


class World:
    """Statistics with a puppet store and routers in the test's hands."""

    def __init__(self) -> None:
        self.store = PuppetStore()
        self.routers = RouterLinks()
        self.statistics = Statistics(self.store, self.routers, MonotonicClock())

    def router(self, name: str = "r1") -> RouterLink:
        return self.routers.attach(name, f"unix:/run/{name}")

    def report(
        self, sequence: int, a: int = 0, *, router: str = "r1", collection: int = 0
    ) -> None:
        self.statistics.take(router, report(sequence, a, collection=collection))

    async def collected(self, link: RouterLink) -> int:
        """Return the number that a router is asked for."""
        while True:
            order = await link.orders.get()
            if isinstance(order, CollectStatistics):
                return order.collection

    async def acknowledged(self, link: RouterLink) -> int:
        while True:
            order = await link.orders.get()
            if isinstance(order, AcknowledgeStatistics):
                return order.sequence

    async def total(self) -> int:
        return (await self.statistics.totals()).get(M1, Counted())["a"]


def report(sequence: int, a: int = 0, *, collection: int = 0) -> StatisticsReport:
    increments = {M1: Counted(counts={"a": a})} if sequence else {}
    return StatisticsReport(
        sequence=sequence, collection=collection, increments=increments
    )


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[World]:
    world = World()
    applying = asyncio.create_task(world.statistics.run())
    async with asyncio.timeout(10):
        yield world
    applying.cancel()


async def test_a_read_asks_every_router_and_waits_for_what_they_hold() -> None:
    async with running() as world:
        first, second = world.router("r1"), world.router("r2")
        reading = asyncio.create_task(world.total())
        number = await world.collected(first)
        assert await world.collected(second) == number
        world.report(1, 5, router="r1", collection=number)
        await asyncio.sleep(0)
        assert not reading.done()
        world.report(1, 7, router="r2", collection=number)
        assert await reading == 12


async def test_a_router_that_leaves_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "COLLECTION_TIMEOUT_S", 3600)
    async with running() as world:
        link = world.router()
        reading = asyncio.create_task(world.total())
        await world.collected(link)
        world.routers.detach(link)
        world.statistics.forget_gauges("r1")
        assert await reading == 0


async def test_a_router_that_does_not_answer_delays_a_read_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "COLLECTION_TIMEOUT_S", 0.01)
    async with running() as world:
        world.router()
        world.report(1, 3)
        assert await world.total() == 3


async def test_a_report_is_acknowledged_when_it_is_safe_and_not_before() -> None:
    async with running() as world:
        link = world.router()
        world.store.is_away = True
        world.report(1, 3)
        await asyncio.sleep(0)
        assert link.orders.empty()
        world.store.is_away = False
        assert await world.acknowledged(link) == 1
        assert world.store.applied == [1]


async def test_a_report_that_comes_again_is_acknowledged_and_not_counted() -> None:
    async with running() as world:
        link = world.router()
        world.report(1, 3)
        assert await world.acknowledged(link) == 1
        world.routers.detach(link)
        again = world.router()
        world.report(1, 3)
        assert await world.acknowledged(again) == 1
        world.routers.detach(again)
        assert await world.total() == 3


async def test_a_report_that_comes_again_while_it_waits_is_not_counted_twice() -> None:
    async with running() as world:
        world.store.is_away = True
        world.report(1, 3)
        world.report(1, 3)
        assert await world.total() == 3
        world.store.is_away = False
        assert await world.total() == 3


async def test_without_the_store_reads_go_on_and_nothing_is_lost() -> None:
    async with running() as world:
        world.report(1, 1)
        assert await world.total() == 1
        world.store.is_away = True
        for sequence in (2, 3, 4):
            world.report(sequence, 10)
            assert await world.total() == 1 + 10 * (sequence - 1)
        world.store.is_away = False
        link = world.router()
        assert await world.acknowledged(link) == 2
        assert await world.acknowledged(link) == 3
        assert await world.acknowledged(link) == 4
        assert world.store.applied == [1, 2, 3, 4]
        world.routers.detach(link)
        assert await world.total() == 31


async def test_what_was_applied_is_known_also_if_nobody_had_read_before() -> None:
    async with running() as world:
        await world.store.apply("before", report(1, 100))
        link = world.router()
        for sequence in (1, 2):
            world.report(sequence, 5)
            assert await world.acknowledged(link) == sequence
        world.routers.detach(link)
        world.store.is_away = True
        assert await world.total() == 110


async def test_a_duplicate_that_only_the_store_knows_is_not_counted() -> None:
    async with running() as world:
        await world.store.apply("r1", report(1, 5))
        link = world.router()
        world.report(1, 5)
        assert await world.acknowledged(link) == 1
        world.routers.detach(link)
        world.store.is_away = True
        assert await world.total() == 5


async def test_a_store_that_was_away_at_the_first_read_is_read_later() -> None:
    async with running() as world:
        await world.store.apply("before", report(1, 9))
        world.store.is_away = True
        assert await world.total() == 0
        world.store.is_away = False
        assert await world.total() == 9


async def test_a_reset_takes_what_routers_hold_with_it() -> None:
    async with running() as world:
        link = world.router()
        resetting = asyncio.create_task(world.statistics.reset("m"))
        world.report(1, 5, collection=await world.collected(link))
        assert await resetting == (1,)
        world.routers.detach(link)
        assert await world.total() == 0


async def test_nothing_is_reset_while_the_store_is_away() -> None:
    async with running() as world:
        world.report(1, 5)
        assert await world.total() == 5
        world.store.is_away = True
        with pytest.raises(ModelNotReadyError, match="store is away"):
            await world.statistics.reset("m")
        world.report(2, 5)
        with pytest.raises(ModelNotReadyError, match="nothing was reset"):
            await world.statistics.reset("m")
        assert await world.total() == 10


async def test_what_is_here_at_the_end_is_applied() -> None:
    world = World()
    world.report(1, 5)
    await world.statistics.flush()
    assert world.store.applied == [1]
    world.store.is_away = True
    world.report(2, 5)
    await world.statistics.flush()
    assert world.store.applied == [1]


async def test_waiting_requests_add_up_over_routers_that_are_here() -> None:
    statistics = World().statistics
    for router, count in (("r1", 3), ("r2", 4)):
        statistics.take(
            router, StatisticsReport(waiting={M1: count}, loop_lag_ns=count * 10**9)
        )
    assert statistics.waiting() == {M1: 7}
    assert statistics.loop_lags_s() == {"r1": 3.0, "r2": 4.0}
    statistics.take("r1", StatisticsReport())
    statistics.forget_gauges("r2")
    assert statistics.waiting() == {}
    assert statistics.loop_lags_s() == {"r1": 0.0}


async def test_what_one_router_counted_is_known_as_long_as_it_is_here() -> None:
    statistics = World().statistics
    counted = {M1: Counted(counts={"success.count": 2})}
    for sequence in (1, 2, 2):  # the last comes again and counts nothing
        statistics.take("r1", StatisticsReport(sequence=sequence, increments=counted))
    statistics.take("r2", StatisticsReport(waiting={M1: 3}))
    assert statistics.of_router("r1").totals[M1]["success.count"] == 4
    assert statistics.of_router("r1").waiting == {M1: 0}
    assert statistics.of_router("r2").totals == {M1: Counted()}
    assert statistics.of_router("r2").waiting == {M1: 3}
    statistics.forget_gauges("r1")
    assert statistics.of_router("r1").totals == {}


async def test_caches_add_up_over_routers_that_are_here() -> None:
    statistics = World().statistics
    assert statistics.cache() is None
    for router, hits in (("r1", 3), ("r1", 4), ("r2", 5)):
        statistics.take(router, StatisticsReport(cache=CacheState(hits=hits)))
    statistics.take("r3", StatisticsReport())
    assert statistics.cache() == CacheState(hits=9)
    statistics.forget_gauges("r1")
    assert statistics.cache() == CacheState(hits=5)


def latencies(*durations_ns: int) -> list[Latencies]:
    counts = {bucket_of(ns): 1 for ns in durations_ns}
    return [Latencies(version=M1, phase=Phase.QUEUE, counts=counts)]


def test_quantiles_are_those_of_the_last_minute() -> None:
    windows = LatencyWindows()
    windows.add(latencies(10, 20), 0)
    windows.add(latencies(50), WINDOW_NS // 2)
    assert windows.quantiles(M1, Phase.QUEUE, (0.5, 1), WINDOW_NS // 2) == [20, 50]
    assert windows.quantiles(M1, Phase.QUEUE, (0.5,), WINDOW_NS) == [50]
    assert windows.quantiles(M1, Phase.QUEUE, (0.5,), 2 * WINDOW_NS) == [None]
    assert windows.quantiles(M1, Phase.SUCCESS, (0.5,), WINDOW_NS) == [None]
