"""Trace and log settings through control's doors, and from one process to the next."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos import control_pb2, inference_pb2
from services.control.live_settings import StartSettings
from services.control.store import RedisStore
from services.control.trace_config import TraceConfig, read
from services.core import logs
from services.core.logs import LogSettings
from tests.unit.control.control_process import (
    Control,
    Puppet,
    running,
    settings_of,
)
from tests.unit.control.valkey import valkey_folder


@pytest.fixture(autouse=True)
def _own_log() -> Any:  # noqa: ANN401 - a generator without a name
    """Give the test process its log back."""
    yield
    logs.configure()


def control_at(
    tmp_path: Path,
    store: RedisStore | None = None,
    **start: Any,  # noqa: ANN401
) -> Control:
    folder = tmp_path / "models"
    folder.mkdir(exist_ok=True)
    begin = StartSettings(**{"log": LogSettings(), **start})
    return Control(settings_of(folder), store=store, start=begin)


def tracing(tmp_path: Path, *more: str) -> TraceConfig:
    file = f"triton,file={tmp_path / 't.json'}"
    return read([file, "level=TIMESTAMPS", "rate=1", *more])


async def set_traces(
    control: Control, model: str = "", **named: list[str]
) -> dict[str, list[str]]:
    request = inference_pb2.TraceSettingRequest(model_name=model)
    for name, values in named.items():
        request.settings[name].value.extend(values)
        request.settings[name].SetInParent()
    answer = await control.management.TraceSetting(request)
    return {name: list(each.value) for name, each in answer.settings.items()}


async def set_logs(control: Control, **named: bool | int | str) -> Any:  # noqa: ANN401
    request = inference_pb2.LogSettingsRequest()
    kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    for name, value in named.items():
        setattr(request.settings[name], kinds[type(value)], value)
    return (await control.management.LogSettings(request)).settings


class TracingRouter:
    """A router in the test's hands that acknowledges trace settings."""

    def __init__(self, puppet: Puppet) -> None:
        self.puppet = puppet

    async def obeys(self) -> control_pb2.TraceSettings:
        settings: control_pb2.TraceSettings = await self.puppet.told("trace_settings")
        applied = control_pb2.TraceSettingsApplied(revision=settings.revision)
        await self.report(trace_settings_applied=applied)
        return settings

    async def traces(self, session: int, *models: str) -> None:
        ended = [
            control_pb2.TraceEnded(
                session=session, request=control_pb2.TracedRequest(model=m, version=1)
            )
            for m in models
        ]
        sampled = [session] * len(models)
        report = control_pb2.TraceReport(sampled=sampled, ended=ended)
        await self.report(trace_report=report)

    async def report(self, **report: Any) -> None:  # noqa: ANN401
        await self.puppet.write(control_pb2.RouterReport(**report))


def models_in(path: Path) -> list[str]:
    return [r["model_name"] for r in json.loads(path.read_text()) if "model_name" in r]


async def test_a_router_learns_the_settings_when_it_attaches(tmp_path: Path) -> None:
    async with running(control_at(tmp_path, trace=tracing(tmp_path))) as control:
        router = TracingRouter(await control.router())
        scope = (await router.obeys()).overall
        assert (scope.rate, scope.count, scope.timestamps) == (1, -1, True)


async def test_a_change_returns_when_every_router_works_by_it(tmp_path: Path) -> None:
    async with running(control_at(tmp_path, trace=tracing(tmp_path))) as control:
        router = TracingRouter(await control.router())
        await router.obeys()
        change = asyncio.create_task(set_traces(control, trace_rate=["7"]))
        settings = await router.puppet.told("trace_settings")
        assert settings.overall.rate == 7
        assert not change.done()
        applied = control_pb2.TraceSettingsApplied(revision=settings.revision)
        await router.report(trace_settings_applied=applied)
        assert (await change)["trace_rate"] == ["7"]


async def test_a_count_is_read_after_all_that_was_sampled_before(
    tmp_path: Path,
) -> None:
    config = tracing(tmp_path, "count=5")
    async with running(control_at(tmp_path, trace=config)) as control:
        router = TracingRouter(await control.router())
        session = (await router.obeys()).overall.session
        reading = asyncio.create_task(set_traces(control))
        settings = await router.puppet.told("trace_settings")
        await router.traces(session, "a", "b")
        applied = control_pb2.TraceSettingsApplied(revision=settings.revision)
        await router.report(trace_settings_applied=applied)
        assert (await reading)["trace_count"] == ["3"]


async def test_a_change_keeps_what_is_left_of_a_count(tmp_path: Path) -> None:
    async with running(control_at(tmp_path, trace=tracing(tmp_path))) as control:
        await set_traces(control, trace_count=["5"])
        router = TracingRouter(await control.router())
        session = (await router.obeys()).overall.session
        changing = asyncio.create_task(set_traces(control, trace_rate=["2"]))
        settings = await router.puppet.told("trace_settings")
        await router.traces(session, "a", "b")
        applied = control_pb2.TraceSettingsApplied(revision=settings.revision)
        await router.report(trace_settings_applied=applied)
        assert (await router.obeys()).overall.count == 3
        await router.obeys()
        assert (await changing)["trace_count"] == ["3"]


async def test_the_last_of_a_count_writes_a_file_and_stops_the_routers(
    tmp_path: Path,
) -> None:
    config = tracing(tmp_path, "count=2")
    async with running(control_at(tmp_path, trace=config)) as control:
        router = TracingRouter(await control.router())
        session = (await router.obeys()).overall.session
        await router.traces(session, "a", "b")
        assert (await router.obeys()).overall.rate == 0
    assert models_in(tmp_path / "t.json.0") == ["a", "b"]


async def test_traces_of_two_routers_make_one_file_with_ids_of_their_own(
    tmp_path: Path,
) -> None:
    async with running(control_at(tmp_path, trace=tracing(tmp_path))) as control:
        routers = {
            name: TracingRouter(await control.router(name)) for name in ("r1", "r2")
        }
        for name, router in routers.items():
            session = (await router.obeys()).overall.session
            await router.traces(session, name)
            await router.traces(session, name)
        obeying = (router.obeys() for router in routers.values())
        await asyncio.gather(set_traces(control, log_frequency=["9"]), *obeying)
    records = json.loads((tmp_path / "t.json").read_text())
    assert sorted(r["model_name"] for r in records) == ["r1", "r1", "r2", "r2"]
    assert len({r["id"] for r in records}) == 4


async def test_what_two_routers_have_counted_is_enough_for_one_trace(
    tmp_path: Path,
) -> None:
    trace = tracing(tmp_path, "rate=10")
    async with running(control_at(tmp_path, trace=trace)) as control:
        routers = [
            TracingRouter(await control.router("r1")),
            TracingRouter(await control.router("r2")),
        ]
        for router, counted in zip(routers, (4, 7), strict=True):
            session = (await router.obeys()).overall.session
            report = control_pb2.TraceReport()
            report.progress.add(session=session, counted=counted)
            await router.report(trace_report=report)
        first, second = [await each.puppet.told("trace_move") for each in routers]
        # Whoever is heard of last gets what it lacks.
        assert (first.by, second.by) in {(6, -6), (-3, 3)}


async def test_an_unknown_model_has_no_settings(tmp_path: Path) -> None:
    async with running(control_at(tmp_path)) as control:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await set_traces(control, "nope", trace_rate=["x"])
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == "Request for unknown model : nope"


async def test_log_settings_reach_routers_and_workers_and_this_process(
    tmp_path: Path,
) -> None:
    async with running(control_at(tmp_path, log_file="x.log")) as control:
        router, worker = await control.router(), await control.worker()
        await router.told("trace_settings")
        await worker.told("routers")
        settings = await set_logs(control, log_info=False, log_verbose_level=2)
        assert settings["log_file"].string_param == "x.log"
        assert settings["log_verbose_level"].uint32_param == 2
        for told in (router.told, worker.told):
            message = await told("log_settings")
            assert (message.info, message.warning, message.verbose) == (False, True, 2)
        late = await control.worker("late")
        assert not (await late.told("log_settings")).info


async def test_a_log_setting_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with running(control_at(tmp_path)) as control:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await set_logs(control, log_info=1)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await set_logs(control))["log_info"].bool_param


async def test_changed_settings_outlive_the_process(tmp_path: Path) -> None:
    async def run(act: Callable[[Control], Any]) -> Any:  # noqa: ANN401
        store = RedisStore(valkey.url)
        first = control_at(tmp_path, store, trace=tracing(tmp_path))
        async with running(first) as control:
            result = await act(control)
        await store.close()
        return result

    async def change(control: Control) -> None:
        await set_traces(control, trace_rate=["7"], trace_count=["9"])
        await set_logs(control, log_warning=False)

    with valkey_folder() as valkey:
        valkey.start()
        await run(change)
        assert (await run(set_traces))["trace_rate"] == ["7"]
        settings = await run(set_logs)
    assert not settings["log_warning"].bool_param
    assert settings["log_info"].bool_param


async def test_while_the_store_is_away_settings_can_be_changed_all_the_same(
    tmp_path: Path,
) -> None:
    store = RedisStore(f"unix://{tmp_path}/nothing.sock")
    start = control_at(tmp_path, store, trace=tracing(tmp_path))
    async with running(start) as control:
        assert (await set_traces(control, trace_rate=["3"]))["trace_rate"] == ["3"]
    await store.close()
