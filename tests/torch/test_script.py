"""TorchScript models on the real runtime."""

from pathlib import Path

import numpy as np
import pytest
import torch

from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError
from services.core.model_config import (
    InstanceKind,
    ModelConfig,
    SequenceBatching,
    SequenceState,
)
from services.worker.backend import Backend, InstancePlace
from services.worker.backends.pytorch import TorchRuntime
from services.worker.device import Device, DeviceKind
from services.worker.exhaustion import is_exhaustion
from tests.torch.torch_models import AddSub, config, rows, save_script, source

PLACES = (InstancePlace(name="m_0_0", group=0), InstancePlace(name="m_0_1", group=0))


def load(directory: Path, of: ModelConfig) -> Backend:
    (backend,) = TorchRuntime().load(source(directory, of), PLACES[:1])
    return backend


@pytest.fixture(scope="module")
def add_sub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("add_sub")
    save_script(directory, AddSub())
    return directory


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (["left", "right"], ["OUTPUT__0", "OUTPUT__1"]),
        (["right", "left"], ["OUTPUT__1", "OUTPUT__0"]),
        (["INPUT__0", "INPUT__1"], ["SUM", "DIFF"]),
        (["A__1", "B__0"], ["SUM", "DIFF"]),
        (["LEFT", "RIGHT"], ["SUM", "OUT__0"]),
        (["left", "B"], ["SUM", "DIFF"]),
        (["left", "right__1"], ["SUM", "DIFF"]),
    ],
)
def test_tensors_are_named_as_with_triton(
    add_sub: Path, inputs: list[str], outputs: list[str]
) -> None:
    model = load(
        add_sub, config(dict.fromkeys(inputs, (4,)), dict.fromkeys(outputs, (4,)))
    )
    left, right = rows(3), rows(3, 50.0)
    is_swapped = inputs in (["right", "left"], ["A__1", "B__0"])
    values = (right, left) if is_swapped else (left, right)
    given = {n: v.numpy() for n, v in zip(inputs, values, strict=True)}
    found = model.execute(given, outputs)
    expected = [one.detach().numpy() for one in AddSub()(left, right)]
    if outputs == ["OUTPUT__1", "OUTPUT__0"]:
        expected.reverse()
    for name, array in zip(outputs, expected, strict=True):
        assert np.array_equal(found[name], array)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ([], ["Y"], "configuration expects 0 inputs, model provides 2"),
        (["left"], ["Y"], "configuration expects 1 inputs, model provides 2"),
        (["A__0", "B__0"], ["Y"], "inputs 'A__0' and 'B__0' of model 'm' are the same"),
        (["A__0", "B__2"], ["Y"], "input B__2 in the model configuration refers to"),
        (["left", "right"], ["Y__2"], "doesn't exist. This model has 2 outputs"),
        (["left", "right"], ["X", "Y", "Z"], "doesn't exist. This model has 2 outputs"),
    ],
)
def test_a_contradicting_configuration_is_refused(
    add_sub: Path, inputs: list[str], outputs: list[str], message: str
) -> None:
    of = config(dict.fromkeys(inputs, (4,)), dict.fromkeys(outputs, (4,)))
    with pytest.raises(ConfigError) as caught:
        load(add_sub, of)
    assert message in str(caught.value)


def test_a_datatype_that_torchscript_lacks_is_refused_in_tritons_words(
    add_sub: Path,
) -> None:
    of = config({"left": [4], "right": [4]}, {"Y": [4]}, DataType.UINT32)
    with pytest.raises(ConfigError) as caught:
        load(add_sub, of)
    assert str(caught.value) == (
        "unsupported datatype TYPE_UINT32 for input 'left' for model 'm'"
    )


class Same(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize(
    "datatype",
    [d for d in DataType if d.value not in ("BYTES", "UINT16", "UINT32", "UINT64")],
    ids=lambda one: one.value,
)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_every_datatype_goes_through(
    tmp_path: Path, datatype: DataType, count: int
) -> None:
    save_script(tmp_path, Same())
    model = load(tmp_path, config({"x": [3]}, {"Y": [3]}, datatype))
    x = np.array([[0, 1, 0x3F80]] * count).reshape(count, 3)
    x = x.astype(datatype.numpy_dtype)
    x.flags.writeable = False
    y = model.execute({"x": x}, ["Y"])["Y"]
    assert y.dtype == datatype.numpy_dtype
    assert y.tolist() == x.tolist()


def test_an_output_of_another_datatype_is_told_in_tritons_words(tmp_path: Path) -> None:
    save_script(tmp_path, Same())
    of = config({"x": [3]}, {"Y": [3]})
    with pytest.raises(
        BackendError, match="TYPE_FP32 for output 'Y', model provides TYPE_INT64"
    ):
        load(tmp_path, of).execute({"x": np.zeros((1, 3), np.int64)}, ["Y"])


class Shout(torch.nn.Module):
    def forward(self, x: list[str]) -> list[str]:
        return [one + "!" for one in x]


def test_strings_go_through_as_a_list(tmp_path: Path) -> None:
    save_script(tmp_path, Shout())
    of = config({"x": [1]}, {"Y": [1]}, DataType.BYTES, reshape=[])
    model = load(tmp_path, of)
    x = np.array(["é".encode(), b""], object)
    assert model.execute({"x": x}, ["Y"])["Y"].tolist() == ["é!", "!"]
    with pytest.raises(
        BackendError, match="input 'x' holds an element that is not UTF-8"
    ):
        model.execute({"x": np.array([b"\xff"], object)}, ["Y"])


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (
            config({"x": [1]}, {"Y": [1]}, DataType.BYTES),
            "Triton only supports 1 dimensional List of String as input for 'x' for"
            " model 'm'",
        ),
        (
            config({"x": [4]}, {"Y": [4]}),
            "configuration expects datatype TYPE_FP32 for input 'x', model provides"
            " List[str]",
        ),
    ],
    ids=["two dimensions", "no strings"],
)
def test_strings_that_are_no_flat_list_are_refused(
    tmp_path: Path, of: ModelConfig, message: str
) -> None:
    save_script(tmp_path, Shout())
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, of)
    assert message in str(caught.value)


class ByName(torch.nn.Module):
    def forward(self, x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"SUM": x["A"] + x["B"]}


class ByPlace(torch.nn.Module):
    def forward(self, x: list[torch.Tensor]) -> list[torch.Tensor]:
        return [x[0] + x[1], x[0] - x[1]]


def test_a_dict_has_the_configurations_names(tmp_path: Path) -> None:
    save_script(tmp_path, ByName())
    model = load(tmp_path, config({"A": [4], "B": [4]}, {"SUM": [4]}))
    a, b = rows(2).numpy(), rows(2, 9.0).numpy()
    assert np.array_equal(model.execute({"B": b, "A": a}, ["SUM"])["SUM"], a + b)


def test_what_a_dict_lacks_is_told(tmp_path: Path) -> None:
    save_script(tmp_path, ByName())
    a = rows(1).numpy()
    model = load(tmp_path, config({"A": [4], "C": [4]}, {"SUM": [4]}))
    with pytest.raises(BackendError, match="KeyError: B"):
        model.execute({"A": a, "C": a}, ["SUM"])
    model = load(tmp_path, config({"A": [4], "B": [4]}, {"DIFF": [4]}))
    with pytest.raises(BackendError, match="has no tensor 'DIFF'"):
        model.execute({"A": a, "B": a}, ["DIFF"])


def test_a_list_has_the_configurations_order(tmp_path: Path) -> None:
    save_script(tmp_path, ByPlace())
    model = load(tmp_path, config({"X__1": [4], "X__0": [4]}, {"Y__1": [4]}))
    a, b = rows(2).numpy(), rows(2, 9.0).numpy()
    found = model.execute({"X__0": a, "X__1": b}, ["Y__1"])
    assert np.array_equal(found["Y__1"], a - b)


def test_an_element_that_a_list_lacks_is_told(tmp_path: Path) -> None:
    save_script(tmp_path, ByPlace())
    model = load(tmp_path, config({"A": [4], "B": [4]}, {"Y__2": [4]}))
    a = rows(1).numpy()
    with pytest.raises(BackendError, match="gave 2 outputs, the configuration wants"):
        model.execute({"A": a, "B": a}, ["Y__2"])


class Scaled(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, by: torch.Tensor | None = None, times: int = 1
    ) -> torch.Tensor:
        return x * times if by is None else x * by


def test_an_argument_with_a_default_may_be_left_out(tmp_path: Path) -> None:
    save_script(tmp_path, Scaled())
    x, by = rows(2).numpy(), rows(2, 3.0).numpy()
    model = load(tmp_path, config({"x": [4]}, {"Y": [4]}))
    assert np.array_equal(model.execute({"x": x}, ["Y"])["Y"], x)
    model = load(tmp_path, config({"x": [4], "by": [4]}, {"Y": [4]}))
    assert np.array_equal(model.execute({"x": x, "by": by}, ["Y"])["Y"], x * by)
    assert np.array_equal(model.execute({"x": x}, ["Y"])["Y"], x)


class Overwriting(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x += y
        return x


def test_a_model_that_writes_to_its_input_writes_to_a_copy(tmp_path: Path) -> None:
    save_script(tmp_path, Overwriting())
    model = load(tmp_path, config({"x": [4], "y": [4]}, {"Z": [4]}))
    x, y = rows(2).numpy(), rows(2, 3.0).numpy()
    before = x.copy()
    assert np.array_equal(model.execute({"x": x, "y": y}, ["Z"])["Z"], before + y)
    assert np.array_equal(x, before)


class Failing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.empty(1 << 50)


def test_too_little_memory_is_told_as_such(tmp_path: Path) -> None:
    save_script(tmp_path, Failing())
    model = load(tmp_path, config({"x": [1]}, {"Y": [1]}))
    with pytest.raises(BackendError) as caught:
        model.execute({"x": np.ones((1, 1), np.float32)}, ["Y"])
    assert is_exhaustion(caught.value)


def test_a_failing_run_is_told_without_the_stack_of_cpp(tmp_path: Path) -> None:
    save_script(tmp_path, ByPlace())
    model = load(tmp_path, config({"A": [-1], "B": [-1]}, {"Y": [4]}))
    with pytest.raises(BackendError, match=r"^PyTorch execute failure: ") as caught:
        model.execute({"A": np.zeros((1, 3)), "B": np.zeros((1, 4))}, ["Y"])
    assert "The size of tensor a (3) must match" in str(caught.value)
    assert "frame #" not in str(caught.value)
    good = np.zeros((1, 4), np.float32)
    assert model.execute({"A": good, "B": good}, ["Y"])["Y"].shape == (1, 4)


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.calls: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * 0 + self.calls


@pytest.mark.parametrize(("shares", "second"), [("false", 1.0), ("true", 2.0)])
def test_instances_share_a_model_only_if_told_so(
    tmp_path: Path, shares: str, second: float
) -> None:
    save_script(tmp_path, Counting())
    of = config({"x": [1]}, {"Y": [1]}, parameters={"ENABLE_WEIGHT_SHARING": shares})
    first, other = TorchRuntime().load(source(tmp_path, of), PLACES)
    x = np.ones((1, 1), np.float32)
    assert first.execute({"x": x}, ["Y"])["Y"].tolist() == [[1.0]]
    first.unload()
    assert other.execute({"x": x}, ["Y"])["Y"].tolist() == [[second]]


class Modes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1, 1) + int(x.is_inference())


@pytest.mark.parametrize(("mode", "expected"), [("true", 1.0), ("false", 0.0)])
def test_inference_mode_is_as_the_configuration_says(
    tmp_path: Path, mode: str, expected: float
) -> None:
    save_script(tmp_path, Modes())
    of = config({"x": [1]}, {"Y": [1]}, parameters={"INFERENCE_MODE": mode})
    found = load(tmp_path, of).execute({"x": np.ones((1, 1), np.float32)}, ["Y"])
    assert found["Y"].tolist() == [[expected]]


@pytest.mark.parametrize(("disable", "optimized"), [("true", False), ("false", True)])
def test_optimized_execution_is_as_the_configuration_says(
    add_sub: Path, disable: str, *, optimized: bool
) -> None:
    of = config(
        {"left": [4], "right": [4]},
        {"Y": [4]},
        parameters={"DISABLE_OPTIMIZED_EXECUTION": disable},
    )
    x = rows(1).numpy()
    load(add_sub, of).execute({"left": x, "right": x}, ["Y"])
    assert torch._C._get_graph_executor_optimize() is optimized


def test_a_gpu_instance_on_a_cpu_worker_is_refused(add_sub: Path) -> None:
    of = config({"left": [4], "right": [4]}, {"Y": [4]}, kind=InstanceKind.GPU)
    with pytest.raises(ConfigError, match="KIND_GPU but this worker serves cpu"):
        load(add_sub, of)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it has one")
def test_a_gpu_that_pytorch_cannot_use_is_told(add_sub: Path) -> None:
    of = config({"left": [4], "right": [4]}, {"Y": [4]}, kind=InstanceKind.GPU)
    gpu = Device(kind=DeviceKind.GPU)
    with pytest.raises(BackendError, match=r"failed to load model 'm': .*CUDA"):
        TorchRuntime().load(source(add_sub, of, gpu), PLACES[:1])


def test_a_model_stays_where_it_was_saved_if_its_kind_says_so(add_sub: Path) -> None:
    of = config({"left": [4], "right": [4]}, {"Y": [4]}, kind=InstanceKind.MODEL)
    gpu = Device(kind=DeviceKind.GPU)
    (model,) = TorchRuntime().load(source(add_sub, of, gpu), PLACES[:1])
    x = rows(1).numpy()
    assert model.execute({"left": x, "right": x}, ["Y"])["Y"].shape == (1, 4)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=f"unable to find '{tmp_path}/model.pt'"):
        load(tmp_path, config({"x": [1]}, {"Y": [1]}))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"garbage!")
    with pytest.raises(
        BackendError, match="failed to load model 'm': File is not a zip"
    ):
        load(tmp_path, config({"x": [1]}, {"Y": [1]}))


def test_a_script_under_the_platform_of_packages_is_refused(add_sub: Path) -> None:
    of = config({"left": [4], "right": [4]}, {"Y": [4]}, platform="torch_aoti")
    with pytest.raises(ConfigError, match=r"model\.pt is a TorchScript file"):
        load(add_sub, of)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {},
            "unable to load model 'm', configuration expects 0 inputs, model provides",
        ),
        (
            {"left": [4], "right": [4]},
            "model configuration must contain at least one output, none were specified",
        ),
    ],
)
def test_a_script_does_not_tell_what_a_configuration_lacks(
    add_sub: Path, inputs: dict[str, list[int]], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        TorchRuntime().inspect(source(add_sub, config(inputs, {})))
    assert str(caught.value).startswith(message)


class Running(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, total: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, total + x


def test_states_of_a_sequence_are_inputs_and_outputs(tmp_path: Path) -> None:
    save_script(tmp_path, Running())
    state = SequenceState(
        input_name="STATE__1", output_name="SUM__1", datatype=DataType.FP32, dims=(4,)
    )
    of = config(
        {"X__0": [4]},
        {"Y__0": [4]},
        sequence_batching=SequenceBatching(states=(state,)),
    )
    x, total = rows(2).numpy(), rows(2, 9.0).numpy()
    given = {"X__0": x, "STATE__1": total}
    found = load(tmp_path, of).execute(given, ["Y__0", "SUM__1"])
    assert np.array_equal(found["Y__0"], x * 2)
    assert np.array_equal(found["SUM__1"], total + x)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="it has none")
def test_a_model_on_a_gpu_answers_as_its_module(add_sub: Path) -> None:
    of = config({"left": [4], "right": [4]}, {"Y": [4]}, kind=InstanceKind.GPU)
    gpu = Device(kind=DeviceKind.GPU)
    (model,) = TorchRuntime().load(source(add_sub, of, gpu), PLACES[:1])
    left, right = rows(3), rows(3, 50.0)
    found = model.execute({"left": left.numpy(), "right": right.numpy()}, ["Y"])
    expected = AddSub()(left, right)[0].detach().numpy()
    assert np.allclose(found["Y"], expected)
