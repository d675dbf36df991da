"""AOTInductor packages on the real runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError
from services.core.model_config import InstanceKind, ModelConfig
from services.worker.backend import Backend, InstancePlace
from services.worker.backends.pytorch import TorchRuntime
from services.worker.device import Device, DeviceKind
from tests.torch.torch_models import CPU, Nested, config, rows, source

PLACE = InstancePlace(name="m_0_0", group=0)
INPUTS = ("ARGS[0]", "ARGS[2][a]", "ARGS[2][b]", "KWARGS[last]")
OUTPUTS = ("RESULT[sum]", "RESULT[pair][0]", "RESULT[pair][1]")


def package(
    inputs: tuple[str, ...] = INPUTS,
    outputs: tuple[str, ...] = OUTPUTS,
    *,
    dims: tuple[int, ...] = (4,),
    **more: Any,  # noqa: ANN401 - of config
) -> ModelConfig:
    return config(
        dict.fromkeys(inputs, dims),
        dict.fromkeys(outputs, (4,)),
        **more,
        platform="torch_aoti",
        default_model_filename="model.pt2",
    )


def load(directory: Path, of: ModelConfig, device: Device = CPU) -> Backend:
    (backend,) = TorchRuntime().load(source(directory, of, device), [PLACE])
    return backend


@pytest.mark.parametrize("count", [1, 2, 9])
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (INPUTS, OUTPUTS),
        (("I__0", "I__1", "I__2", "I__3"), ("O__0", "O__1", "O__2")),
        (("x", "a", "b", "last"), ("sum", "pair[0]", "pair[1]")),
    ],
    ids=["Triton's", "numbers", "order"],
)
def test_a_package_answers_as_its_module(
    compiled: Path, inputs: tuple[str, ...], outputs: tuple[str, ...], count: int
) -> None:
    x, a, b, last = (rows(count, 10.0 * i) for i in range(4))
    values = [one.numpy() for one in (x, a, b, last)]
    model = load(compiled, package(inputs, outputs))
    found = model.execute(dict(zip(inputs, values, strict=True)), outputs)
    expected = Nested()(x, 2.0, {"a": a, "b": b}, last=last)
    assert np.array_equal(found[outputs[0]], expected["sum"].numpy())
    assert np.array_equal(found[outputs[1]], expected["pair"][0].numpy())
    assert np.array_equal(found[outputs[2]], expected["pair"][1].numpy())


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3), "'ARGS[0]' has shape [2, 3], the package was compiled for [-1, 4]"),
        ((17, 4), "[-1, 4], at most 16 at 0"),
        ((4,), "'ARGS[0]' has shape [4], the package was compiled for [-1, 4]"),
    ],
)
def test_a_shape_that_it_was_not_compiled_for_is_refused(
    compiled: Path, shape: tuple[int, ...], message: str
) -> None:
    model = load(compiled, package(dims=(-1,)))
    given = dict.fromkeys(INPUTS, rows(2).numpy())
    with pytest.raises(BackendError) as caught:
        model.execute({**given, "ARGS[0]": np.zeros(shape, np.float32)}, OUTPUTS)
    assert message in str(caught.value)
    assert len(model.execute(given, OUTPUTS)) == len(OUTPUTS)


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (package(outputs=("O__6",)), "output O__6 in the model configuration"),
        (package(inputs=("x",)), "expects 1 inputs, model provides 4"),
        (package(("I__1", "J__1", "I__2", "I__3")), "the same input of the file"),
        (package(dims=(5,)), "the model expects 2 dimensions (shape [-1,4]) but"),
        (package(datatype=DataType.FP16), "model provides TYPE_FP32"),
        (package(max_batch_size=17), "expects max_batch_size 17, model provides 16"),
    ],
)
def test_a_contradicting_configuration_is_refused(
    compiled: Path, of: ModelConfig, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(compiled, of)
    assert message in str(caught.value)


def test_a_package_for_another_kind_of_device_is_refused(compiled: Path) -> None:
    gpu = Device(kind=DeviceKind.GPU)
    with pytest.raises(
        ConfigError, match="compiled for cpu, the instance runs on cuda"
    ):
        load(compiled, package(kind=InstanceKind.GPU), gpu)


def test_a_package_does_not_tell_what_a_configuration_lacks(compiled: Path) -> None:
    with pytest.raises(ConfigError, match="expects 0 inputs, model provides 4"):
        TorchRuntime().inspect(source(compiled, package((), ())))
