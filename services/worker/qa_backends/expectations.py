"""What a test backend wants of a model's configuration. Pure."""

from collections.abc import Sequence
from typing import TypeAlias

from services.core.errors import ConfigError
from services.core.model_config import (
    InstanceKind,
    ModelConfig,
    ModelInput,
    ModelOutput,
)
from services.worker.backend import InstancePlace, ModelSource

Tensor: TypeAlias = ModelInput | ModelOutput


def expect(condition: object, message: str) -> None:
    """Refuse the model with ``message`` unless ``condition`` holds.

    Raises:
        ConfigError: it does not.
    """
    if not condition:
        raise ConfigError(message)


def whole_parameter(config: ModelConfig, key: str, default: int = 0) -> int:
    """Return a parameter that is a whole number of at least 0.

    Raises:
        ConfigError: it is something else.
    """
    text = config.parameters.get(key)
    if text is None:
        return default
    expect(
        text.isascii() and text.isdigit(),
        f"parameter '{key}' of model '{config.name}' must be a whole number, got"
        f" '{text}'",
    )
    return int(text)


def shape_text(dims: tuple[int, ...]) -> str:
    """Return a shape as Triton's messages show it, e.g. "[-1,2]"."""
    return f"[{','.join(map(str, dims))}]"


def expect_names(tensors: Sequence[Tensor], kind: str, names: tuple[str, ...]) -> None:
    """Refuse a model whose inputs (or outputs) are not called ``names``, in order.

    Raises:
        ConfigError: their number or a name differs.
    """
    plural = "" if len(names) == 1 else "s"
    expect(
        len(tensors) == len(names),
        f"expected {len(names)} {kind}{plural}, got {len(tensors)}",
    )
    places = ("first", "second", "third")
    for place, tensor, name in zip(places, tensors, names, strict=False):
        expect(
            tensor.name == name,
            f"expected {place} {kind} tensor name to be {name}, got {tensor.name}",
        )


def expect_decoupled(config: ModelConfig, backend: str) -> None:
    """Refuse a model whose requests have exactly one response.

    Raises:
        ConfigError: it is not decoupled.
    """
    expect(
        config.decoupled,
        f"{backend} backend needs model_transaction_policy {{ decoupled: true }} in"
        f" the configuration of model '{config.name}'",
    )


def expect_cpu(source: ModelSource, place: InstancePlace, backend: str) -> None:
    """Refuse an instance that is to run on a GPU.

    Raises:
        ConfigError: it is.
    """
    groups = source.config.instance_groups
    is_gpu = place.group < len(groups) and (
        groups[place.group].kind is InstanceKind.GPU
    )
    expect(not is_gpu, f"'{backend}' backend only supports CPU instances")


def tensors_of(config: ModelConfig) -> tuple[Tensor, ...]:
    """Return the inputs, then the outputs."""
    return (*config.inputs, *config.outputs)
