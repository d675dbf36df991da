"""ModelStatistics and the metrics page as clients get them, routers being puppets."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos import control_pb2, control_pb2_grpc, inference_pb2, rest_pb2, rest_pb2_grpc
from services.control.statistics_servicer import statistics_message
from services.control.statistics_totals import Counted
from tests.unit.control.control_process import (
    Control,
    Puppet,
    running,
    settings_of,
    write_model,
)

COUNTS = {
    "success.count": 2,
    "success.ns": 500,
    "inference_count": 3,
    "execution_count": 1,
    "batch.3.count": 1,
}


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[Control]:
    """A control with ``a`` (versions 2 and 10) and ``b`` ready; no router."""
    latest = 'version_policy { all {} }\nmax_batch_size: 8\nbackend: "onnxruntime"\n'
    tensors = (
        'input { name: "IN" data_type: TYPE_INT32 dims: 16 }\n'
        'output { name: "OUT" data_type: TYPE_INT32 dims: 16 }\n'
        "instance_group { kind: KIND_CPU count: 1 }\n"
    )
    write_model(tmp_path, "a", config=latest + tensors, versions="2 10")
    write_model(tmp_path, "b", config=latest + tensors)
    async with asyncio.timeout(20), running(Control(settings_of(tmp_path))) as control:
        worker = await control.worker()
        starting = asyncio.create_task(control.catalog.start_up())
        for _ in range(3):
            await worker.loads()
        await starting
        yield control


async def statistics(
    control: Control, name: str = "", version: str = ""
) -> list[inference_pb2.ModelStatistics]:
    request = inference_pb2.ModelStatisticsRequest(name=name, version=version)
    answer = await control.management.ModelStatistics(request)
    return list(answer.model_stats)


async def reported(puppet: Puppet, sequence: int, **fields: Any) -> None:  # noqa: ANN401
    """Answer the next collection, with a report of version 10 of ``a``."""
    collect = await puppet.told("collect_statistics")
    counters = control_pb2.VersionCounters(
        model="a", version=10, last_inference_ms=77, increments=COUNTS
    )
    report = control_pb2.StatisticsReport(
        sequence=sequence, collection=collect.collection, versions=[counters], **fields
    )
    await puppet.tell(statistics=report)


async def metrics(control: Control, process: str = "", name: str = "") -> list[str]:
    stub: Any = rest_pb2_grpc.MetricsServiceStub(control.channel)
    page = await stub.Metrics(rest_pb2.MetricsRequest(process=process, id=name))
    return str(page.data.decode()).splitlines()


async def test_versions_come_in_order_and_without_inferences_they_are_zero(
    control: Control,
) -> None:
    everything = await statistics(control)
    assert [(m.name, m.version) for m in everything] == [
        *(("a", "2"), ("a", "10"), ("b", "1"))
    ]
    assert {m.last_inference for m in everything} == {0}
    assert [m.version for m in await statistics(control, "a")] == ["2", "10"]
    assert [m.version for m in await statistics(control, "a", "10")] == ["10"]


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("nope", "", "requested model 'nope' is not available"),
        ("a", "1", "requested model version is not available for model 'a'"),
        ("a", "x", "failed to get model version from specified version string 'x'"),
    ],
)
async def test_what_is_not_ready_has_no_statistics(
    control: Control, name: str, version: str, message: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
        await statistics(control, name, version)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_router_is_told_what_to_count_asked_and_acknowledged(
    control: Control,
) -> None:
    router = await control.router()
    settings = await router.told("statistics_settings")
    assert not settings.latency_distributions
    reading = asyncio.create_task(statistics(control, "a", "10"))
    await reported(router, 1)
    (model,) = await reading
    assert (model.inference_count, model.last_inference) == (3, 77)
    assert model.inference_stats.success.ns == 500
    assert [batch.batch_size for batch in model.batch_stats] == [3]
    assert (await router.told("statistics_applied")).sequence == 1


async def test_the_page_shows_the_same_counts_and_who_waits(control: Control) -> None:
    router = await control.router()
    reading = asyncio.create_task(metrics(control))
    waiting = control_pb2.WaitingRequests(model="b", version=1, count=4)
    await reported(router, 1, waiting=[waiting], loop_lag_ns=5 * 10**8)
    lines = await reading
    assert 'nv_inference_count{model="a",version="10"} 3' in lines
    assert 'nv_inference_request_success{model="a",version="10"} 2' in lines
    assert 'nv_inference_pending_request_count{model="b",version="1"} 4' in lines
    assert 'nereid_router_loop_lag_seconds{router="r1"} 0.5' in lines
    assert any(line.startswith("nv_cpu_memory_total_bytes ") for line in lines)
    assert any(line.startswith("nv_model_load_duration_secs{") for line in lines)


async def test_histograms_add_up_over_routers(control: Control) -> None:
    routers = [await control.router(name) for name in ("r1", "r2")]
    reading = asyncio.create_task(metrics(control))
    for router in routers:
        await reported(router, 1)
    lines = await reading
    family = 'nereid_batch_size_bucket{model="a",version="10",le='
    assert f'{family}"2"}} 0' in lines
    assert f'{family}"4"}} 2' in lines
    assert 'nereid_batch_size_sum{model="a",version="10"} 6' in lines


async def test_statistics_that_are_switched_off_are_not_to_be_had(
    control: Control,
) -> None:
    settings = control.statistics.metrics
    control.statistics.metrics = dataclasses.replace(settings, has_statistics=False)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await statistics(control)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == "the server does not support model statistics"


async def test_every_process_has_a_page_of_what_it_did(control: Control) -> None:
    first = await control.router()
    await first.told("statistics_settings")
    second = await control.router("r2")
    await second.told("statistics_settings")
    use = control_pb2.ProcessUse(cpu_ns=2 * 10**9, resident_bytes=77, started_ms=1_500)
    reading = asyncio.create_task(metrics(control, "router", "r2"))
    await reported(second, 1, process=use)
    await reported_nothing(first)
    lines = await reading
    assert 'nv_inference_count{model="a",version="10"} 3' in lines
    assert "process_cpu_seconds_total 2" in lines
    assert "process_resident_memory_bytes 77" in lines
    assert "process_start_time_seconds 1.5" in lines
    reading = asyncio.create_task(metrics(control, "router", "0"))
    await reported_nothing(first)
    await reported_nothing(second)
    assert not any(line.startswith("nv_inference_count") for line in await reading)
    reading = asyncio.create_task(metrics(control, "router", "1"))
    await reported_nothing(first)
    await reported_nothing(second)
    assert 'nv_inference_count{model="a",version="10"} 3' in await reading
    second.hang_up()
    reading = asyncio.create_task(metrics(control, "worker", "0"))
    await reported_nothing(first)
    assert "nereid_worker_instances 3" in await reading


async def test_a_process_that_is_not_there_has_no_page(control: Control) -> None:
    assert any(
        line.startswith("process_start_time_seconds ")
        for line in await metrics(control, "control")
    )
    for role, name in (("worker", "9"), ("router", "0"), ("control", "x"), ("x", "")):
        with pytest.raises(grpc.aio.AioRpcError, match="there is no process") as caught:
            await metrics(control, role, name)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def reported_nothing(puppet: Puppet) -> None:
    """Answer the next collection without having counted anything."""
    collect = await puppet.told("collect_statistics")
    report = control_pb2.StatisticsReport(collection=collect.collection)
    await puppet.tell(statistics=report)


async def test_a_reset_counts_anew_and_knows_what_there_is(control: Control) -> None:
    router = await control.router()
    stub: Any = control_pb2_grpc.StatisticsControlStub(control.channel)
    resetting = asyncio.create_task(_reset(stub, "a"))
    await reported(router, 1)
    assert await resetting == [10]
    router.hang_up()
    assert (await statistics(control, "a", "10"))[0].inference_count == 0
    assert await _reset(stub, "b") == []
    with pytest.raises(grpc.aio.AioRpcError, match="'nope' is not available"):
        await _reset(stub, "nope")


async def _reset(stub: Any, model: str) -> list[int]:  # noqa: ANN401
    answer = await stub.ResetStatistics(control_pb2.ResetStatisticsRequest(model=model))
    return list(answer.versions)


def test_responses_of_decoupled_models_are_told_by_their_place() -> None:
    counted = Counted(
        counts={
            "response.0.success.count": 2,
            "response.10.fail.ns": 9,
            "response.10.compute_infer.count": 1,
        }
    )
    (model,) = statistics_message({("m", 1): counted}, {}).model_stats
    assert model.response_stats.keys() == {"0", "10"}
    assert model.response_stats["0"].success.count == 2
    assert model.response_stats["10"].fail.ns == 9
    assert model.response_stats["10"].compute_infer.count == 1


def test_memory_is_told_by_tritons_names_of_devices() -> None:
    key, uses = ("m", 1), [("CPU", 0, 9), ("GPU", 2, 7)]
    (model,) = statistics_message({key: Counted()}, {key: uses}).model_stats
    assert [(u.type, u.id, u.byte_size) for u in model.memory_usage] == uses
