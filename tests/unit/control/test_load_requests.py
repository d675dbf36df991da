"""Loads that bring a configuration or files, and loads that cross each other."""

import asyncio
import dataclasses
import json
from pathlib import Path

import grpc
import pytest

from protos import inference_pb2
from protos.inference_pb2 import ModelRepositoryParameter as Parameter
from services.control.catalog_settings import ControlMode
from tests.unit.control.control_process import (
    Control,
    parameters,
    running,
    settings_of,
    write_model,
)

OTHER = json.dumps(
    {
        "backend": "onnxruntime",
        "max_batch_size": 4,
        "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [16]}],
        "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [16]}],
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
    }
)
FILE = {"file:1/model.onnx": Parameter(bytes_param=b"content")}


def explicit(root: Path) -> Control:
    settings = settings_of(root, mode=ControlMode.EXPLICIT)
    settings = dataclasses.replace(settings, override_root=str(root / ".overrides"))
    return Control(settings)


async def ask(
    control: Control, name: str, given: dict[str, Parameter] | None = None
) -> None:
    request = inference_pb2.RepositoryModelLoadRequest(
        model_name=name, parameters=given
    )
    await control.management.RepositoryModelLoad(request)


def left_behind(root: Path) -> list[Path]:
    return list((root / ".overrides").iterdir())


async def test_a_configuration_holds_until_the_files_change(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    async with running(explicit(tmp_path)) as control:
        worker = await control.worker()
        loading = asyncio.create_task(ask(control, "m", dict(parameters(config=OTHER))))
        order = await worker.loads()
        assert order.config.max_batch_size == 4
        await loading
        await ask(control, "m")  # returns without an order: it serves as it is
        (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"another model")
        loading = asyncio.create_task(ask(control, "m"))
        assert (await worker.loads()).config.max_batch_size == 8
        await loading


async def test_a_configuration_ends_with_the_model(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    async with running(explicit(tmp_path)) as control:
        worker = await control.worker()
        loading = asyncio.create_task(ask(control, "m", dict(parameters(config=OTHER))))
        await worker.loads()
        await loading
        await control.catalog.unload("m")
        await worker.unloads()
        loading = asyncio.create_task(ask(control, "m"))
        assert (await worker.loads()).config.max_batch_size == 8
        await loading


async def test_a_configuration_that_fails_leaves_the_former_one(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "m")
    async with running(explicit(tmp_path)) as control:
        worker = await control.worker()
        loading = asyncio.create_task(ask(control, "m"))
        first = await worker.loads()
        await loading
        loading = asyncio.create_task(ask(control, "m", dict(parameters(config=OTHER))))
        await worker.fails("Internal: broken")
        with pytest.raises(grpc.aio.AioRpcError, match="Internal: broken"):
            await loading
        await ask(control, "m")  # the former one: nothing to do
        serving = control.supervisor.reconciler.registry.serving(("m", 1))
        assert serving is not None
        assert serving.number == first.generation


async def test_files_make_a_model_that_no_repository_has(tmp_path: Path) -> None:
    async with running(explicit(tmp_path)) as control:
        tidying = asyncio.create_task(control.catalog.tidy())
        worker = await control.worker()
        given = {**FILE, **parameters(config=OTHER)}
        loading = asyncio.create_task(ask(control, "new", given))
        order = await worker.loads()
        assert order.model_name == "new"
        assert (Path(order.version_directory) / "model.onnx").read_bytes() == b"content"
        await loading
        await control.catalog.unload("new")
        assert left_behind(tmp_path)  # the worker drains
        await worker.unloads()
        async with asyncio.timeout(30):
            while left_behind(tmp_path):
                await control.index()
        tidying.cancel()


async def test_a_load_without_files_returns_to_those_of_the_repository(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "m")
    async with running(explicit(tmp_path)) as control:
        worker = await control.worker()
        given = {**FILE, **parameters(config=OTHER)}
        loading = asyncio.create_task(ask(control, "m", given))
        assert ".overrides" in (await worker.loads()).version_directory
        await loading
        loading = asyncio.create_task(ask(control, "m"))
        order = await worker.loads()
        assert order.version_directory == str(tmp_path / "m" / "1")
        await loading


@pytest.mark.parametrize(
    ("name", "given", "code", "details"),
    [
        ("m", FILE, "INTERNAL", "failed to load 'm', failed to poll"),
        (
            "m",
            {"file:../x": Parameter(bytes_param=b""), **parameters(config=OTHER)},
            "INVALID_ARGUMENT",
            "invalid path '../x'",
        ),
        (
            "../m",
            {**FILE, **parameters(config=OTHER)},
            "INVALID_ARGUMENT",
            "invalid model name '../m'",
        ),
        (
            "m",
            {"file:1/x": Parameter(string_param="")},
            "INVALID_ARGUMENT",
            "invalid value type for load parameter 'file:1/x', expected bytes_param.",
        ),
        (
            "m",
            {"config": Parameter(bytes_param=b"{}")},
            "INVALID_ARGUMENT",
            "invalid value type for load parameter 'config', expected string_param.",
        ),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(
    tmp_path: Path, name: str, given: dict[str, Parameter], code: str, details: str
) -> None:
    write_model(tmp_path, "m")
    async with running(explicit(tmp_path)) as control:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await ask(control, name, given)
        assert raised.value.code().name == code
        assert str(raised.value.details()).startswith(details)
        assert not (tmp_path / ".overrides").exists()


async def test_an_unload_waits_for_the_load_that_came_first(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    async with running(explicit(tmp_path)) as control:
        worker = await control.worker()
        loading = asyncio.create_task(control.catalog.load("m"))
        order = await worker.told("load")
        unloading = asyncio.create_task(control.catalog.unload("m"))
        again = asyncio.create_task(control.catalog.load("m"))
        assert await control.index() == [("m", "1", "LOADING", "")]
        generations = [each.number for each in control.supervisor.reconciler.registry]
        assert generations == [order.generation]  # neither has begun
        await worker.report(loaded={"generation": order.generation})
        await loading
        await unloading
        assert await worker.unloads() == order.generation
        await worker.loads()
        await again
        assert await control.index() == [("m", "1", "READY", "")]


async def test_the_flag_of_an_unload_must_be_a_boolean(tmp_path: Path) -> None:
    async with running(explicit(tmp_path)) as control:
        request = inference_pb2.RepositoryModelUnloadRequest(
            model_name="m", parameters=parameters(unload_dependents="yes")
        )
        with pytest.raises(grpc.aio.AioRpcError, match="expected bool_param"):
            await control.management.RepositoryModelUnload(request)


async def test_a_custom_configuration_is_used_where_there_is_one(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "m")
    write_model(tmp_path, "n")
    custom = tmp_path / "m" / "configs" / "small.pbtxt"
    custom.parent.mkdir()
    text = (tmp_path / "m" / "config.pbtxt").read_text()
    custom.write_text(text.replace("max_batch_size: 8", "max_batch_size: 2"))
    settings = settings_of(tmp_path, config_name="small")
    async with running(Control(settings)) as control:
        starting = asyncio.create_task(control.catalog.start_up())
        worker = await control.worker()
        sizes = {}
        for _ in range(2):
            order = await worker.loads()
            sizes[order.model_name] = order.config.max_batch_size
        await starting
    assert sizes == {"m": 2, "n": 8}


ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "A" data_type: TYPE_INT32 dims: 16 }
output { name: "B" data_type: TYPE_INT32 dims: 16 }
ensemble_scheduling { step {
  model_name: "MEMBER" model_version: -1
  input_map { key: "IN" value: "A" } output_map { key: "OUT" value: "B" }
} }
"""


async def test_an_ensemble_brings_its_members_and_takes_them_along(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "m")
    write_model(tmp_path, "e", config=ENSEMBLE.replace("MEMBER", "m"))
    async with running(explicit(tmp_path)) as control:
        worker = await control.worker()
        loading = asyncio.create_task(ask(control, "e"))
        assert (await worker.loads()).model_name == "m"
        await loading
        ready = await control.index(ready=True)
        assert [name for name, *_ in ready] == ["e", "m"]
        request = inference_pb2.RepositoryModelUnloadRequest(
            model_name="e", parameters={"unload_dependents": Parameter(bool_param=True)}
        )
        await control.management.RepositoryModelUnload(request)
        await worker.unloads()
        assert await control.index(ready=True) == []


async def test_a_member_that_was_asked_for_by_name_stays(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    write_model(tmp_path, "e", config=ENSEMBLE.replace("MEMBER", "m"))
    async with running(explicit(tmp_path)) as control:
        worker = await control.worker()
        loading = asyncio.create_task(ask(control, "m"))
        await worker.loads()
        await loading
        await ask(control, "e")
        await control.catalog.unload("e", with_members=True)
        ready = await control.index(ready=True)
        assert [name for name, *_ in ready] == ["m"]


async def test_ensembles_in_a_circle_are_refused_from_both_ends(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "e", config=ENSEMBLE.replace("MEMBER", "f"))
    write_model(tmp_path, "f", config=ENSEMBLE.replace("MEMBER", "e"))
    async with running(explicit(tmp_path)) as control:
        await control.worker()
        async with asyncio.timeout(30):
            answers = await asyncio.gather(
                ask(control, "e"), ask(control, "f"), return_exceptions=True
            )
        assert all(isinstance(each, grpc.aio.AioRpcError) for each in answers)


async def test_a_load_that_no_worker_is_there_for_is_given_up(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    settings = settings_of(tmp_path, mode=ControlMode.EXPLICIT, worker_wait_s=0.0)
    async with running(Control(settings)) as control:
        with pytest.raises(grpc.aio.AioRpcError, match="no worker is attached"):
            await ask(control, "m")
        await control.catalog.unload("m")  # nobody holds it up
        assert await control.index() == [("m", "1", "UNAVAILABLE", "unloaded")]


async def test_a_load_whose_worker_leaves_is_given_up_if_no_other_comes(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "m")
    settings = settings_of(tmp_path, mode=ControlMode.EXPLICIT, worker_wait_s=0.2)
    async with running(Control(settings)) as control:
        worker = await control.worker()
        loading = asyncio.create_task(ask(control, "m"))
        await worker.told("load")
        worker.hang_up()
        with pytest.raises(grpc.aio.AioRpcError, match="no worker is attached"):
            await loading


async def test_a_load_goes_on_with_the_worker_that_comes_in_time(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "m")
    async with running(explicit(tmp_path)) as control:
        first = await control.worker("w1")
        loading = asyncio.create_task(ask(control, "m"))
        await first.told("load")
        first.hang_up()
        second = await control.worker("w2")
        await second.loads()
        await loading


async def test_files_of_a_refused_request_are_not_kept(tmp_path: Path) -> None:
    async with running(explicit(tmp_path)) as control:
        await control.worker()
        given = {**FILE, **parameters(config="{x")}
        with pytest.raises(grpc.aio.AioRpcError, match="failed to poll"):
            await ask(control, "new", given)
        assert left_behind(tmp_path) == []


async def test_another_version_policy_loads_only_what_it_adds(tmp_path: Path) -> None:
    write_model(tmp_path, "m", versions="1 2")

    def only(*versions: int) -> dict[str, Parameter]:
        policy = {"specific": {"versions": versions}}
        config = {**json.loads(OTHER), "version_policy": policy}
        return dict(parameters(config=json.dumps(config)))

    async with running(explicit(tmp_path)) as control:
        worker = await control.worker()
        for wanted, loaded in (((1,), 1), ((1, 2), 2)):
            loading = asyncio.create_task(ask(control, "m", only(*wanted)))
            assert (await worker.loads()).model_version == loaded
            await loading
        assert [entry[:3] for entry in await control.index()] == [
            ("m", "1", "READY"),
            ("m", "2", "READY"),
        ]
