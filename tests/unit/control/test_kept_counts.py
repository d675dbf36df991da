"""What workers count and how often they restart, over the lives of control."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protos import control_pb2, rest_pb2, rest_pb2_grpc
from services.control.store import RedisStore
from tests.unit.control.control_process import (
    Control,
    Puppet,
    running,
    settings_of,
)
from tests.unit.control.valkey import Valkey, valkey_folder

WAIT_S = 20


@contextlib.asynccontextmanager
async def control_at(valkey: Valkey, folder: Path) -> AsyncIterator[Control]:
    """Run one life of control with a store."""
    store = RedisStore(valkey.url)
    control = Control(settings_of(folder), store=store)
    await control.supervisor.remember_workers()
    async with asyncio.timeout(WAIT_S), running(control):
        yield control
        # Like a process that is killed a moment after its last write.
        await control.statistics.flush()
        await store.close()


async def seen(puppet: Puppet, source: int, value: float) -> None:
    shown = control_pb2.ModelMetrics(source=source, model="m", version=1)
    family = shown.family.add(name="seen_total", text="t", kind="COUNTER")
    family.metric.add(value=value)
    await puppet.report(metrics=shown)


async def gone(puppet: Puppet, source: int) -> None:
    shown = control_pb2.ModelMetrics(source=source, model="m", version=1)
    await puppet.report(metrics=shown)


async def until_shown(control: Control, *wanted: str) -> None:
    """Wait until the page has these lines."""
    stub: Any = rest_pb2_grpc.MetricsServiceStub(control.channel)
    while True:
        page = (await stub.Metrics(rest_pb2.MetricsRequest())).data.decode()
        if set(wanted) <= set(page.splitlines()):
            return


@pytest.mark.timeout(60)
async def test_counts_of_workers_outlive_them_and_control(tmp_path: Path) -> None:
    with valkey_folder() as valkey:
        valkey.start()
        async with control_at(valkey, tmp_path) as control:
            worker = await control.worker("w", started_ms=1)
            await seen(worker, 1, 4)
            await until_shown(control, "seen_total 4", "nereid_worker_restarts_total 0")
            worker.hang_up()
            worker = await control.worker("w", started_ms=2)
            await seen(worker, 1, 1)
            await until_shown(control, "seen_total 5", "nereid_worker_restarts_total 1")
            await gone(worker, 1)
            await seen(worker, 2, 2)
            await until_shown(control, "seen_total 7")
        async with control_at(valkey, tmp_path) as control:
            await until_shown(control, "nereid_worker_restarts_total 1")
            # The same process: it tells everything again, and counts once.
            worker = await control.worker("w", started_ms=2)
            await seen(worker, 2, 3)
            await until_shown(control, "seen_total 8", "nereid_worker_restarts_total 1")
        async with control_at(valkey, tmp_path) as control:
            worker = await control.worker("w", started_ms=3)
            await seen(worker, 1, 0)
            await until_shown(control, "seen_total 8", "nereid_worker_restarts_total 2")


@pytest.mark.timeout(60)
async def test_what_is_counted_while_the_store_is_away_is_added_to_it(
    tmp_path: Path,
) -> None:
    with valkey_folder() as valkey:
        valkey.start()
        async with control_at(valkey, tmp_path) as control:
            worker = await control.worker("w", started_ms=1)
            await seen(worker, 1, 4)
            await until_shown(control, "seen_total 4")
        valkey.stop()
        store = RedisStore(valkey.url)
        control = Control(settings_of(tmp_path), store=store)
        async with asyncio.timeout(WAIT_S):
            async with running(control):
                worker = await control.worker("w", started_ms=2)
                await seen(worker, 1, 1)
                await until_shown(control, "seen_total 1")
                valkey.start()
                await until_shown(control, "seen_total 5")
            await store.close()
        async with control_at(valkey, tmp_path) as control:
            worker = await control.worker("w", started_ms=2)
            await seen(worker, 1, 1)
            await until_shown(control, "seen_total 5")


async def test_a_worker_that_says_goodbye_is_not_restarted_by_the_next(
    tmp_path: Path,
) -> None:
    async with running(Control(settings_of(tmp_path))) as control:
        worker = await control.worker("w", started_ms=1)
        await seen(worker, 1, 4)
        await until_shown(control, "seen_total 4")
        await worker.says_goodbye()
        await until_shown(control, "nereid_workers 0", "nereid_worker_losses_total 1")
        worker = await control.worker("w", started_ms=2)
        await seen(worker, 1, 0)
        await until_shown(control, "seen_total 4", "nereid_worker_restarts_total 0")
