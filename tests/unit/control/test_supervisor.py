"""Control over real streams, with puppet workers and routers."""

import asyncio
import dataclasses
from pathlib import Path

import grpc
import pytest

from protos import control_pb2, inference_pb2
from services.control.catalog_settings import ControlMode
from services.control.snapshot import Snapshot
from services.control.store import NoStore
from services.control.supervisor import Grace
from tests.unit.control.control_process import (
    CONFIG,
    IMPATIENT,
    Control,
    found_add_sub,
    parameters,
    running,
    settings_of,
    write_model,
)

READY = control_pb2.VersionRoute.READY
UNAVAILABLE = control_pb2.VersionRoute.UNAVAILABLE


async def test_a_model_of_the_repository_becomes_ready_on_a_worker(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "m")
    async with running(Control(settings_of(tmp_path))) as control:
        starting = asyncio.create_task(control.catalog.start_up())
        router = await control.router()
        worker = await control.worker()
        order = await worker.loads()
        assert order.model_name == "m"
        assert order.model_version == 1
        assert order.version_directory == str(tmp_path / "m" / "1")
        assert [each.name for each in order.instances] == ["m_0_0"]
        assert order.config.name == "m"
        assert await starting == []
        route = await router.applies_until("m", READY)
        assert route.generation == order.generation
        assert route.config == order.config
        late = await control.router("late")
        assert (await late.applies()).ready
        assert await control.index() == [("m", "1", "READY", "")]


async def test_a_worker_learns_all_routers_and_every_change(tmp_path: Path) -> None:
    async with running(Control(settings_of(tmp_path))) as control:
        first = await control.router("r1")
        await first.applies()
        worker = await control.worker()
        assert (await worker.told("routers")).endpoints == ["unix:/run/r1"]
        second = await control.router("r2")
        both = ["unix:/run/r1", "unix:/run/r2"]
        assert (await worker.told("routers")).endpoints == both
        second.hang_up()
        assert (await worker.told("routers")).endpoints == ["unix:/run/r1"]


async def test_what_the_text_leaves_open_is_asked_of_a_worker(tmp_path: Path) -> None:
    write_model(tmp_path, "auto", config=None)
    async with running(Control(settings_of(tmp_path))) as control:
        starting = asyncio.create_task(control.catalog.start_up())
        gone = await control.worker("gone")
        await gone.told("inspect")
        gone.hang_up()  # before it answers: another one is asked
        worker = await control.worker()
        question = await worker.told("inspect")
        assert question.backend == "onnxruntime"
        assert question.version_directory == str(tmp_path / "auto" / "1")
        answer = control_pb2.ModelInspected(
            inspection=question.inspection, found=found_add_sub()
        )
        await worker.report(inspected=answer)
        order = await worker.loads()
        assert order.config.max_batch_size == 4
        assert [each.name for each in order.config.input] == ["IN"]
        assert await starting == []


async def test_a_file_that_cannot_be_inspected_gives_its_version_the_reason(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "bad", config=None)
    async with running(Control(settings_of(tmp_path))) as control:
        starting = asyncio.create_task(control.catalog.start_up())
        worker = await control.worker()
        question = await worker.told("inspect")
        error = "Internal: onnx runtime error 7: Protobuf parsing failed."
        answer = control_pb2.ModelInspected(inspection=question.inspection, error=error)
        await worker.report(inspected=answer)
        assert await starting == [f"failed to load 'bad' version 1: {error}"]
        assert await control.index() == [("bad", "1", "UNAVAILABLE", error)]
        router = await control.router()
        table = await router.applies()
        assert [model.name for model in table.models] == ["bad"]
        assert list(table.models[0].versions) == []  # no complete config to send


async def test_failures_are_named_and_the_other_models_go_on(tmp_path: Path) -> None:
    write_model(tmp_path, "bad_load")
    write_model(tmp_path, "bad_text", config="max_batch_siz: 8")
    write_model(tmp_path, "good")
    async with running(Control(settings_of(tmp_path))) as control:
        starting = asyncio.create_task(control.catalog.start_up())
        worker = await control.worker()
        await worker.fails("Internal: no")
        await worker.loads()
        text, load = await starting
        assert text.startswith("failed to load 'bad_text': ")
        assert "max_batch_siz" in text
        assert load == "failed to load 'bad_load' version 1: Internal: no"
        index = {each[0]: each[1:] for each in await control.index()}
        assert index["bad_load"] == ("1", "UNAVAILABLE", "Internal: no")
        assert index["bad_text"][:2] == ("", "UNAVAILABLE")
        assert index["good"] == ("1", "READY", "")
        assert await control.index(ready=True) == [("good", "1", "READY", "")]
        assert not control.supervisor.reconciler.table.ready


async def test_a_worker_that_dials_again_in_time_is_not_missed(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    grace = dataclasses.replace(IMPATIENT, worker_s=30.0)
    async with running(Control(settings_of(tmp_path), grace=grace)) as control:
        starting = asyncio.create_task(control.catalog.start_up())
        worker = await control.worker()
        order = await worker.loads()
        await starting
        revision = control.supervisor.reconciler.table.revision
        worker.hang_up()
        await control.supervisor.until(lambda: control.supervisor.worker_count == 0)
        await control.worker(generations=(order.generation,))
        await control.supervisor.until(lambda: control.supervisor.worker_count == 1)
        assert control.supervisor.reconciler.table.revision == revision


async def test_a_successor_on_the_same_device_need_not_wait(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    grace = dataclasses.replace(IMPATIENT, worker_s=3600.0)
    async with running(Control(settings_of(tmp_path), grace=grace)) as control:
        starting = asyncio.create_task(control.catalog.start_up())
        worker = await control.worker("old")
        await worker.loads()
        await starting
        worker.hang_up()
        await control.supervisor.until(lambda: control.supervisor.worker_count == 0)
        successor = await control.worker("new")
        assert (await successor.loads()).model_name == "m"


async def test_a_lost_worker_makes_its_model_unavailable_until_one_comes(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "m")
    async with running(Control(settings_of(tmp_path))) as control:
        starting = asyncio.create_task(control.catalog.start_up())
        worker = await control.worker("w1")
        await worker.loads()
        await starting
        router = await control.router()
        await router.applies_until("m", READY)
        worker.hang_up()
        assert "no worker" in (await router.applies_until("m", UNAVAILABLE)).reason
        await (await control.worker("w2")).loads()
        await router.applies_until("m", READY)


async def test_polling_follows_the_repository(tmp_path: Path) -> None:
    write_model(tmp_path, "a")
    settings = settings_of(tmp_path, mode=ControlMode.POLL, poll_interval_s=0.001)
    async with running(Control(settings)) as control:
        starting = asyncio.create_task(control.catalog.start_up())
        worker = await control.worker()
        first = await worker.loads()
        await starting
        polling = asyncio.create_task(control.catalog.poll())
        # Each change happens at once: a folder half written is another story.
        aside = tmp_path / ".aside"
        write_model(aside, "b")
        (aside / "b").rename(tmp_path / "b")
        assert (await worker.loads()).model_name == "b"
        (aside / "model.onnx").write_bytes(b"another model")
        (aside / "model.onnx").replace(tmp_path / "a" / "1" / "model.onnx")
        assert (await worker.loads()).model_name == "a"
        assert await worker.unloads() == first.generation
        (tmp_path / "b").rename(aside / "b")
        await worker.unloads()
        reconciler = control.supervisor.reconciler
        assert reconciler.desired_models() == {"a"}
        polling.cancel()


async def test_a_successor_of_control_leaves_what_serves_alone(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    store = KeepingStore()
    async with running(Control(settings_of(tmp_path), store=store)) as control:
        starting = asyncio.create_task(control.catalog.start_up())
        await control.router()
        worker = await control.worker()
        order = await worker.loads()
        await starting
        snapshot = store.snapshot
    successor = Control(
        settings_of(tmp_path), snapshot=snapshot, first_number=1000, grace=IMPATIENT
    )
    async with running(successor) as control:
        starting = asyncio.create_task(control.catalog.start_up())
        router = await control.router()
        worker = await control.worker(generations=(order.generation,))
        assert (await worker.told("routers")).endpoints == ["unix:/run/r1"]
        assert await starting == []
        table = await router.applies()  # the first it hears, and complete at once
        assert table.ready
        assert table.revision > 1000
        assert table.models[0].versions[0].generation == order.generation
        assert table.models[0].versions[0].state == READY


class KeepingStore(NoStore):
    """Remembers the newest snapshot, here."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshot = Snapshot()

    async def restore(self) -> Snapshot:
        return self.snapshot

    def save(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot


@pytest.mark.parametrize("mode", [ControlMode.NONE, ControlMode.POLL])
async def test_without_explicit_mode_loading_and_unloading_are_refused(
    tmp_path: Path, mode: ControlMode
) -> None:
    write_model(tmp_path, "simple")
    async with running(Control(settings_of(tmp_path, mode=mode))) as control:
        load = inference_pb2.RepositoryModelLoadRequest(model_name="simple")
        unload = inference_pb2.RepositoryModelUnloadRequest(model_name="simple")
        text = "explicit model load / unload is not allowed if polling is enabled"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await control.management.RepositoryModelLoad(load)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert raised.value.details() == text
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await control.management.RepositoryModelUnload(unload)
        assert raised.value.details() == text


async def explicit(control: Control, name: str, **values: str) -> None:
    request = inference_pb2.RepositoryModelLoadRequest(
        model_name=name, parameters=parameters(**values)
    )
    await control.management.RepositoryModelLoad(request)


async def test_a_load_returns_after_the_routers_acknowledged(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    write_model(tmp_path, "never_loaded")
    settings = settings_of(tmp_path, mode=ControlMode.EXPLICIT)
    async with running(Control(settings)) as control:
        assert await control.catalog.start_up() == []
        assert await control.index() == [
            ("m", "", "", ""),
            ("never_loaded", "", "", ""),
        ]
        router = await control.router()
        worker = await control.worker()
        loading = asyncio.create_task(control.catalog.load("m"))
        await worker.loads()
        reconciler = control.supervisor.reconciler
        await control.supervisor.until(lambda: not reconciler.is_pending("m"))
        for _ in range(10):  # whatever is due on the loop happens
            await asyncio.sleep(0)
        assert not loading.done()
        await router.applies_until("m", READY)
        await loading
        assert ("m", "1", "READY", "") in await control.index()


async def test_an_unloaded_model_says_so_in_the_index(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    settings = settings_of(tmp_path, mode=ControlMode.EXPLICIT, start_up_models=("*",))
    async with running(Control(settings)) as control:
        starting = asyncio.create_task(control.catalog.start_up())
        worker = await control.worker()
        order = await worker.loads()
        await starting
        request = inference_pb2.RepositoryModelUnloadRequest(model_name="m")
        await control.management.RepositoryModelUnload(request)
        assert await worker.unloads() == order.generation
        reconciler = control.supervisor.reconciler
        await control.supervisor.until(
            lambda: not reconciler.registry.of(("m", 1))[0].placed
        )
        assert await control.index() == [("m", "1", "UNAVAILABLE", "unloaded")]
        assert reconciler.table.ready


async def test_a_load_that_fails_tells_every_versions_reason(tmp_path: Path) -> None:
    write_model(
        tmp_path, "m", config=CONFIG + "version_policy { all {} }", versions="1 2"
    )
    settings = settings_of(tmp_path, mode=ControlMode.EXPLICIT)
    async with running(Control(settings)) as control:
        worker = await control.worker()
        loading = asyncio.create_task(explicit(control, "m"))
        await worker.fails("Internal: one")
        await worker.fails("Internal: two")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await loading
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert raised.value.details() == (
            "load failed for model 'm':"
            " version 1 is at UNAVAILABLE state: Internal: one;\n"
            "version 2 is at UNAVAILABLE state: Internal: two;\n"
        )


async def test_a_reload_with_another_configuration_swaps_and_frees_the_old_one(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "m")
    settings = settings_of(tmp_path, mode=ControlMode.EXPLICIT)
    async with running(Control(settings)) as control:
        worker = await control.worker()
        loading = asyncio.create_task(explicit(control, "m"))
        old = await worker.loads()
        await loading
        await explicit(control, "m")  # nothing changed: nothing is loaded
        override = (
            '{"backend": "onnxruntime", "max_batch_size": 4,'
            ' "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [16]}],'
            ' "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [16]}]}'
        )
        loading = asyncio.create_task(explicit(control, "m", config=override))
        new = await worker.loads()
        assert new.config.max_batch_size == 4
        assert new.generation > old.generation
        await loading
        assert await worker.unloads() == old.generation


async def test_a_failed_reload_leaves_the_model_ready(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    settings = settings_of(tmp_path, mode=ControlMode.EXPLICIT)
    async with running(Control(settings)) as control:
        worker = await control.worker()
        loading = asyncio.create_task(explicit(control, "m"))
        await worker.loads()
        await loading
        (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"another model")
        loading = asyncio.create_task(explicit(control, "m"))
        await worker.fails("Internal: broken")
        with pytest.raises(grpc.aio.AioRpcError, match="Internal: broken"):
            await loading
        assert await control.index() == [("m", "1", "READY", "")]


@pytest.mark.parametrize(
    ("name", "config", "versions", "answer"),
    [
        (
            "nope",
            CONFIG,
            "1",
            (
                grpc.StatusCode.INTERNAL,
                "failed to load 'nope', failed to poll from model repository",
            ),
        ),
        (
            "m",
            "name: 'other'",
            "1",
            (
                grpc.StatusCode.INTERNAL,
                "failed to load 'm', failed to poll from model repository",
            ),
        ),
        (
            "m",
            CONFIG,
            "",
            (
                grpc.StatusCode.INVALID_ARGUMENT,
                "load failed for model 'm': at least one version must be available "
                "under the version policy of model 'm'\n",
            ),
        ),
        (
            "m",
            CONFIG.replace("onnxruntime", "nosuch"),
            "1",
            (
                grpc.StatusCode.INVALID_ARGUMENT,
                "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid "
                "argument: unable to find backend library for backend 'nosuch', try "
                "specifying runtime on the model configuration.;\n",
            ),
        ),
        (
            "m",
            CONFIG.replace("KIND_CPU", "KIND_GPU"),
            "1",
            (
                grpc.StatusCode.INVALID_ARGUMENT,
                "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid "
                "argument: instance group m_0 of model m has kind KIND_GPU but no GPUs "
                "are available;\n",
            ),
        ),
    ],
)
async def test_a_load_that_cannot_be_is_refused_in_tritons_words(
    tmp_path: Path,
    name: str,
    config: str,
    versions: str,
    answer: tuple[grpc.StatusCode, str],
) -> None:
    write_model(tmp_path, "m", config=config, versions=versions)
    settings = settings_of(tmp_path, mode=ControlMode.EXPLICIT)
    async with running(Control(settings)) as control:
        await control.worker()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await explicit(control, name)
        assert (raised.value.code(), raised.value.details()) == answer


async def test_what_is_not_there_says_so(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, mode=ControlMode.EXPLICIT)
    async with running(Control(settings)) as control:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await explicit(control, "m", foo="bar")
        assert raised.value.details() == "unrecognized load parameter 'foo'."
        for request in (
            control.management.SystemSharedMemoryStatus(
                inference_pb2.SystemSharedMemoryStatusRequest()
            ),
            control.management.RepositoryIndex(
                inference_pb2.RepositoryIndexRequest(repository_name="x")
            ),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await request
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_gpu_that_joins_later_takes_the_models_that_may_use_it(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "m", config=CONFIG.replace("KIND_CPU", "KIND_AUTO"))
    async with running(Control(settings_of(tmp_path))) as control:
        starting = asyncio.create_task(control.catalog.start_up())
        cpu = await control.worker("cpu")
        on_cpu = await cpu.loads()
        await starting
        device = control_pb2.Device(kind=control_pb2.Device.GPU, index=0)
        gpu = await control.worker("gpu", device=device)
        on_gpu = await gpu.loads()
        assert on_gpu.generation > on_cpu.generation
        assert await cpu.unloads() == on_cpu.generation


async def test_a_stuck_router_holds_up_an_unload_only_so_long(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    settings = settings_of(tmp_path, mode=ControlMode.EXPLICIT, start_up_models=("m",))
    grace = Grace(worker_s=0.0, router_s=0.0, acknowledgement_s=0.0)
    async with running(Control(settings, grace=grace)) as control:
        starting = asyncio.create_task(control.catalog.start_up())
        await control.router("stuck")
        worker = await control.worker()
        order = await worker.loads()
        await starting
        await control.catalog.unload("m")
        assert await worker.unloads() == order.generation
