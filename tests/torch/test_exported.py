"""Exported programs on the real runtime."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError
from services.core.model_config import ModelConfig
from services.worker.backend import Backend, FoundModel, FoundTensor, InstancePlace
from services.worker.backends.pytorch import TorchRuntime
from tests.torch.torch_models import (
    AddSub,
    Nested,
    batched,
    config,
    nested_arguments,
    rows,
    save_exported,
    source,
)

PLACE = InstancePlace(name="m_0_0", group=0)


def load(directory: Path, of: ModelConfig) -> Backend:
    (backend,) = TorchRuntime().load(source(directory, of), [PLACE])
    return backend


def pt2(*inputs: str, outputs: tuple[str, ...], **more: Any) -> ModelConfig:  # noqa: ANN401
    names = (dict.fromkeys(inputs, (4,)), dict.fromkeys(outputs, (4,)))
    return config(*names, default_model_filename="model.pt2", **more)


def inspect(directory: Path) -> FoundModel:
    found = TorchRuntime().inspect(source(directory, pt2(outputs=())))
    assert isinstance(found, FoundModel)
    return found


@pytest.fixture(scope="module")
def add_sub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("add_sub")
    arguments = (rows(2), rows(2, 9.0))
    shapes = batched("left", "right")
    save_exported(directory, AddSub(), arguments, dynamic_shapes=shapes)
    return directory


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("nested")
    save_exported(directory, Nested(), **nested_arguments())
    return directory


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_program_answers_as_its_module(add_sub: Path, count: int) -> None:
    model = load(add_sub, pt2("left", "right", outputs=("OUTPUT__0", "OUTPUT__1")))
    left, right = rows(count), rows(count, 50.0)
    names = ["OUTPUT__0", "OUTPUT__1"]
    found = model.execute({"left": left.numpy(), "right": right.numpy()}, names)
    for name, expected in zip(names, AddSub()(left, right), strict=True):
        assert np.array_equal(found[name], expected.detach().numpy())


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (("x", "options[a]", "options[b]", "last"), ("sum", "pair[1]")),
        (
            ("KWARGS[last]", "ARGS[2][b]", "ARGS[2][a]", "ARGS[0]"),
            ("RESULT[sum]", "RESULT[pair][1]"),
        ),
        (("IN__0", "IN__1", "IN__2", "IN__3"), ("OUT__0", "OUT__2")),
        (("x", "a", "b", "last__3"), ("OUT__0", "OUT__2")),
    ],
    ids=["forward", "Triton's", "numbers", "order"],
)
def test_nested_tensors_are_named_in_every_way(
    nested: Path, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> None:
    model = load(nested, pt2(*inputs, outputs=outputs))
    x, a, b, last = (rows(3, 10.0 * i) for i in range(4))
    order = (last, b, a, x) if inputs[0] == "KWARGS[last]" else (x, a, b, last)
    given = {n: v.numpy() for n, v in zip(inputs, order, strict=True)}
    found = model.execute(given, outputs)
    expected = Nested()(x, 2.0, {"a": a, "b": b}, last=last)
    assert np.array_equal(found[outputs[0]], expected["sum"].numpy())
    assert np.array_equal(found[outputs[1]], expected["pair"][1].numpy())


def test_inspection_tells_names_datatypes_and_full_shapes(nested: Path) -> None:
    def fp32(name: str) -> FoundTensor:
        return FoundTensor(name=name, datatype=DataType.FP32, shape=(-1, 4))

    assert inspect(nested) == FoundModel(
        inputs=tuple(map(fp32, ("x", "options[a]", "options[b]", "last"))),
        outputs=tuple(map(fp32, ("sum", "pair[0]", "pair[1]"))),
        max_rows=16,
    )


def test_results_without_a_name_are_numbered(add_sub: Path) -> None:
    found = inspect(add_sub)
    assert [one.name for one in found.outputs] == ["OUTPUT__0", "OUTPUT__1"]
    assert found.max_rows is None


class Joined(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y])


def test_lengths_of_their_own_are_no_batch(tmp_path: Path) -> None:
    dims = {"x": {0: torch.export.Dim("m")}, "y": {0: torch.export.Dim("n")}}
    save_exported(tmp_path, Joined(), (rows(2), rows(3)), dynamic_shapes=dims)
    found = inspect(tmp_path)
    assert (found.max_rows, found.inputs[0].shape) == (0, (-1, 4))
    with pytest.raises(ConfigError, match="expects max_batch_size 8, model provides 0"):
        load(tmp_path, pt2("x", "y", outputs=("Y__0",)))
    of = config(
        {"x": [-1, 4], "y": [-1, 4]},
        {"Y": [-1, 4]},
        max_batch_size=0,
        default_model_filename="model.pt2",
    )
    given = {"x": rows(1).numpy(), "y": rows(4).numpy()}
    assert load(tmp_path, of).execute(given, ["Y"])["Y"].shape == (5, 4)


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (pt2("x", "y", outputs=("Y",)), "expects 2 inputs, model provides 4"),
        (
            pt2("x", "a", "b", "c", outputs=("Y",), max_batch_size=17),
            "expects max_batch_size 17, model provides 16",
        ),
        (
            pt2("x", "a", "b", "c", outputs=("Y",), datatype=DataType.INT64),
            "expects datatype TYPE_INT64 for input 'x', model provides TYPE_FP32",
        ),
        (
            pt2("x", "a", "b", "c", outputs=("Y__3",)),
            "output Y__3 in the model configuration refers to an output index",
        ),
        (
            config(
                dict.fromkeys("xabc", (5,)),
                {"Y": [4]},
                default_model_filename="model.pt2",
            ),
            "the model expects 2 dimensions (shape [-1,4]) but",
        ),
    ],
    ids=["count", "rows", "datatype", "output", "shape"],
)
def test_a_contradicting_configuration_is_refused(
    nested: Path, of: ModelConfig, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(nested, of)
    assert message in str(caught.value)


def test_what_the_program_guards_against_is_told(nested: Path) -> None:
    model = load(nested, pt2("x", "a", "b", "c", outputs=("Y",)))
    with pytest.raises(BackendError, match=r"^PyTorch execute failure: .*<= 16"):
        model.execute(dict.fromkeys("xabc", rows(17).numpy()), ["Y"])


class Overwriting(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2


def test_a_program_that_writes_to_its_input_writes_to_a_copy(tmp_path: Path) -> None:
    arguments = (rows(2),)
    save_exported(tmp_path, Overwriting(), arguments, dynamic_shapes=batched("x"))
    x = rows(3).numpy()
    found = load(tmp_path, pt2("x", outputs=("Y",))).execute({"x": x}, ["Y"])
    assert np.array_equal(found["Y"], (x + 1) * 2)
    assert np.array_equal(x, rows(3).numpy())


class Complex(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_complex(x.reshape(-1, 2, 2))


def test_a_datatype_that_the_protocol_lacks_is_named(tmp_path: Path) -> None:
    save_exported(tmp_path, Complex(), (rows(2),), dynamic_shapes=batched("x"))
    with pytest.raises(ConfigError, match=r"'OUTPUT__0' is a torch\.complex64, which"):
        inspect(tmp_path)


def test_threads_that_load_at_once_do_not_disturb_each_other(add_sub: Path) -> None:
    """In a process of its own: what matters is the first load."""
    program = f"""
import threading
from concurrent.futures import ThreadPoolExecutor
import subprocess
import sys
from pathlib import Path
from services.worker.backends.pytorch import TorchRuntime
from tests.torch.test_exported import load, pt2, rows

start = threading.Barrier(6)
x = rows(1).numpy()

def work(_):
    start.wait(30)
    model = load(Path({str(add_sub)!r}), pt2("left", "right", outputs=("Y",)))
    return model.execute({{"left": x, "right": x}}, ["Y"])["Y"].shape

with ThreadPoolExecutor(6) as threads:
    assert set(threads.map(work, range(6))) == {{(1, 4)}}
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
