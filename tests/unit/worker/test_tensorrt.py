"""TensorRT plans, where the package and CUDA are puppets."""

import importlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError, InvalidRequestError
from services.core.model_config import InstanceGroup, InstanceKind, ModelConfig
from services.worker import backends
from services.worker.backend import (
    Backend,
    FoundModel,
    FoundTensor,
    InstancePlace,
    ModelSource,
)
from services.worker.cuda_driver import CudaDriver, open_driver
from services.worker.device import Device, DeviceKind
from services.worker.execution import Execution
from services.worker.exhaustion import is_exhaustion
from services.worker.signature import Signature
from tests.unit.worker import onnx_models, puppet_tensorrt
from tests.unit.worker.messages import answers, batch, request
from tests.unit.worker.puppet_cuda import PuppetCuda
from tests.unit.worker.puppets import WAIT_S, ManualClock

GPU = Device(kind=DeviceKind.GPU, index=1, uuid="GPU-1", compute_capability="9.0")
OURS = ("tensorrt", "tensorrt_engine")
PLAN = {
    "inputs": {"X": ["FLOAT", [-1, 3]]},
    "outputs": {"Y": ["FLOAT", [-1, 3]]},
    "profiles": [{"X": [[1, 3], [2, 3], [4, 3]]}, {"X": [[1, 3], [8, 3], [8, 3]]}],
    "factor": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A GPU, the package, and a folder for plans."""

    cuda: PuppetCuda
    package: ModuleType
    backend: ModuleType
    directory: Path

    def source(self, of: ModelConfig, device: Device = GPU, **plan: Any) -> ModelSource:  # noqa: ANN401
        (self.directory / "model.plan").write_text(json.dumps(PLAN | plan))
        return onnx_models.source(self.directory, of, device)

    def load(self, of: ModelConfig, count: int = 1, **plan: Any) -> tuple[Backend, ...]:  # noqa: ANN401
        places = [InstancePlace(name=f"m_0_{n}", group=0) for n in range(count)]
        loaded: tuple[Backend, ...] = self.backend.runtime().load(
            self.source(of, **plan), places
        )
        return loaded


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    cuda = PuppetCuda()
    driver = CudaDriver(cuda)
    package = puppet_tensorrt.module(cuda)
    monkeypatch.setitem(sys.modules, "tensorrt", package)
    for name in OURS:
        monkeypatch.delitem(
            sys.modules, f"services.worker.backends.{name}", raising=False
        )
    backend = importlib.import_module("services.worker.backends.tensorrt")
    monkeypatch.setattr(backend, "open_driver", lambda: driver)
    monkeypatch.setattr("services.worker.host_memory.open_driver", lambda: driver)
    yield Bench(cuda=cuda, package=package, backend=backend, directory=tmp_path)
    for name in OURS:
        sys.modules.pop(f"services.worker.backends.{name}", None)


def config(max_batch_size: int = 4, *profiles: str, **parameters: str) -> ModelConfig:
    group = InstanceGroup(name="m_0", kind=InstanceKind.GPU, count=1, profiles=profiles)
    of = onnx_models.config(
        {"X": [3]},
        {"Y": [3]},
        DataType.FP32,
        max_batch_size=max_batch_size,
        parameters=parameters,
    )
    return replace(of, instance_groups=(group,))


def rows(count: int, start: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    x = np.arange(start, start + 3 * count, dtype=np.float32)
    return x.reshape(count, 3)


def test_batches_of_every_size_are_computed(bench: Bench) -> None:
    (model,) = bench.load(config())
    for count in (1, 4, 2):
        found = model.execute({"X": rows(count, count)}, ["Y"])
        assert found["Y"].tolist() == (2 * rows(count, count)).tolist()


def test_a_batch_goes_from_bytes_to_bytes(bench: Bench) -> None:
    (model,) = bench.load(config())
    execution = Execution(Signature.from_config(config(), 1), model, ManualClock())
    message = batch(*(request({"X": rows(1, n)}) for n in range(3)))
    for n, answer in enumerate(answers(execution.run(message))):
        found = answer.array("Y").view(np.float32)
        assert found.tolist() == (2 * rows(1, n)).tolist()


def test_each_instance_has_a_stream_and_a_context_of_one_engine(bench: Bench) -> None:
    models = bench.load(config(), count=3)
    (engine,) = bench.package.engines
    assert len(engine.contexts) == len(bench.cuda.streams) == 3
    for model in models:
        model.execute({"X": rows(1)}, ["Y"])
    assert [context.runs for context in engine.contexts] == [1, 1, 1]


def test_a_batch_runs_with_the_nearest_of_the_groups_profiles(bench: Bench) -> None:
    (model,) = bench.load(config(8, "0", "1"))
    (engine,) = bench.package.engines
    for count, runs in ((2, [1, 0]), (5, [1, 1]), (4, [2, 1]), (8, [2, 2])):
        found = model.execute({"X": rows(count)}, ["Y"])["Y"]
        assert found.tolist() == (2 * rows(count)).tolist()
        assert [context.runs for context in engine.contexts] == runs
    assert [context.profile for context in engine.contexts] == [0, 1]


def test_any_thread_may_run_the_next_batch(bench: Bench) -> None:
    (model,) = bench.load(config())
    found: list[float] = []

    def work() -> None:
        found.append(float(model.execute({"X": rows(1, 5)}, ["Y"])["Y"][0, 0]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(WAIT_S)
    assert found == [10]


def test_unloading_gives_all_of_the_gpu_back(bench: Bench) -> None:
    models = bench.load(config(8, "0", "1"), count=2)
    for model in models:
        model.execute({"X": rows(3)}, ["Y"])
        model.unload()
    assert bench.cuda.memory == {}
    assert bench.cuda.streams == {}


def test_a_gpu_that_is_full_fails_the_load_and_keeps_nothing(bench: Bench) -> None:
    bench.cuda.room = 300
    with pytest.raises(BackendError, match="out of memory") as caught:
        bench.load(config(), count=4)
    assert is_exhaustion(caught.value)
    assert bench.cuda.memory == {}
    assert bench.cuda.streams == {}


def test_shapes_beyond_the_profile_fail_that_batch_only(bench: Bench) -> None:
    (model,) = bench.load(config())
    with pytest.raises(InvalidRequestError, match="between 1 and 4 but received 5"):
        model.execute({"X": rows(5)}, ["Y"])
    assert model.execute({"X": rows(1, 1)}, ["Y"])["Y"][0, 0] == 2


def test_a_batch_that_cannot_be_enqueued_says_why(bench: Bench) -> None:
    (model,) = bench.load(config(), fails=True)
    text = "m_0_0: TensorRT did not enqueue a batch: enqueue went wrong"
    with pytest.raises(BackendError, match=text):
        model.execute({"X": rows(1)}, ["Y"])


def test_only_the_outputs_that_are_wanted_are_copied(bench: Bench) -> None:
    two = {"Y": ["FLOAT", [-1, 3]], "Z": ["FLOAT", [-1, 1]]}
    (model,) = bench.load(config(), outputs=two)
    assert list(model.execute({"X": rows(2)}, ["Y"])) == ["Y"]


def test_the_allocation_strategy_is_tritons(bench: Bench) -> None:
    bench.load(config(execution_context_allocation_strategy="ON_PROFILE_CHANGE"))
    (engine,) = bench.package.engines
    assert engine.contexts[0].strategy.name == "ON_PROFILE_CHANGE"
    with pytest.raises(ConfigError, match="is 'LAZY': expected one of STATIC, ON_PROF"):
        bench.load(config(execution_context_allocation_strategy="LAZY"))


@pytest.mark.parametrize(
    ("of", "plan", "text"),
    [
        (config(8), {}, "maximum batch size 8 for 'm_0_0', model maximum is 4"),
        (config(4, "2"), {}, "Expected optimization profile index range 0-1"),
        (config(), {"shape_tensors": ["X"]}, "is a shape tensor"),
        (config(), {"vectorized": ["Y"]}, "non-linear IO format"),
        (config(), {"data_dependent": ["Y"]}, "output 'Y' depends on the data"),
        (config(), {"outputs": {"Y": ["FP8", [-1, 3]]}}, "tensor 'Y' is a FP8"),
        (
            config(),
            {"inputs": {"X": ["HALF", [-1, 3]]}},
            "expects datatype TYPE_FP32 for input 'X', model provides TYPE_FP16",
        ),
    ],
)
def test_what_contradicts_the_engine_is_refused(
    bench: Bench, of: ModelConfig, plan: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        bench.load(of, **plan)
    assert bench.cuda.memory == {}
    assert bench.cuda.streams == {}


def test_a_plan_that_is_none_is_told_with_tensorrts_reason(bench: Bench) -> None:
    of = bench.source(config())
    (bench.directory / "model.plan").write_text("no plan")
    place = InstancePlace(name="m_0_0", group=0)
    text = r"unable to create engine from .*model\.plan: magic tag does not match"
    with pytest.raises(BackendError, match=text):
        bench.backend.runtime().load(of, [place])


def test_inspection_tells_shapes_and_the_largest_batch(bench: Bench) -> None:
    assert bench.backend.runtime().inspect(bench.source(config())) == FoundModel(
        inputs=(FoundTensor(name="X", datatype=DataType.FP32, shape=(-1, 3)),),
        outputs=(FoundTensor(name="Y", datatype=DataType.FP32, shape=(-1, 3)),),
        max_rows=8,
    )


@pytest.mark.parametrize("act", ["load", "inspect"])
def test_a_worker_of_a_cpu_says_that_a_gpu_is_needed(bench: Bench, act: str) -> None:
    of = bench.source(config(), onnx_models.CPU)
    more: dict[str, Callable[..., Any]] = {
        "load": lambda runtime: runtime.load(of, []),
        "inspect": lambda runtime: runtime.inspect(of),
    }
    with pytest.raises(
        ConfigError, match="only GPU device, and this worker serves cpu"
    ):
        more[act](bench.backend.runtime())


def test_without_a_driver_the_load_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.backend, "open_driver", lambda: open_driver("libnone.so"))
    with pytest.raises(BackendError, match="there is no CUDA driver here"):
        bench.load(config())


def test_only_workers_of_gpus_offer_it(bench: Bench) -> None:
    bench.package.__spec__ = importlib.machinery.ModuleSpec("tensorrt", None)
    assert "tensorrt" in backends.available_backends(has_gpu=True)
    assert "tensorrt" not in backends.available_backends(has_gpu=False)


def test_without_the_package_the_extra_is_named() -> None:
    of = ModelConfig(name="m", platform="tensorrt_plan")
    with pytest.raises(ConfigError, match=r"needs tensorrt, .* the extra tensorrt"):
        backends.find_runtime(of)
