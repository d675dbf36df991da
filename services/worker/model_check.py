"""Whether a model file and its configuration speak of the same tensors."""

from collections.abc import Sequence
from typing import TypeAlias

from services.core.errors import ConfigError
from services.core.model_config import ModelConfig, ModelInput, ModelOutput
from services.worker.backend import FoundModel, FoundTensor

_Declared: TypeAlias = ModelInput | ModelOutput


def check_model(config: ModelConfig, found: FoundModel) -> None:
    """Refuse a configuration that its model file contradicts.

    A model may have more outputs than are configured, but not more inputs: it
    could not run. Wildcards on either side fit everything.

    Raises:
        ConfigError: with Triton's text where it has one.
    """
    controls = _control_names(config)
    offered = [one for one in found.inputs if one.name not in controls]
    required = [one for one in config.inputs if not one.optional]
    if not len(required) <= len(offered) <= len(config.inputs):
        message = (
            f"unable to load model '{config.name}', configuration expects"
            f" {len(config.inputs)} inputs, model provides {len(offered)}"
        )
        raise ConfigError(message)
    _check(config, "input", config.inputs, found.inputs)
    _check(config, "output", config.outputs, found.outputs)


def _control_names(config: ModelConfig) -> frozenset[str]:
    """Return the inputs that tell of sequences: declared apart from the others."""
    sequences = config.sequence_batching
    if sequences is None:
        return frozenset()
    return frozenset(one.name for one in sequences.control_inputs)


def _check(
    config: ModelConfig,
    kind: str,
    declared: Sequence[_Declared],
    found: Sequence[FoundTensor],
) -> None:
    by_name = {tensor.name: tensor for tensor in found}
    for tensor in declared:
        actual = by_name.get(tensor.name)
        if actual is None:
            if isinstance(tensor, ModelInput) and tensor.optional:
                continue
            message = (
                f"unexpected inference {kind} '{tensor.name}', allowed {kind}s are:"
                f" {', '.join(by_name)}"
            )
            raise ConfigError(message)
        if actual.datatype is not tensor.datatype:
            message = (
                f"unable to load model '{config.name}', configuration expects"
                f" datatype {tensor.datatype.config_name} for {kind}"
                f" '{tensor.name}', model provides {actual.datatype.config_name}"
            )
            raise ConfigError(message)
        _check_shape(config, tensor, actual)


def _check_shape(config: ModelConfig, tensor: _Declared, actual: FoundTensor) -> None:
    subject = f"model '{config.name}', tensor '{tensor.name}'"
    dims = tensor.model_dims
    if config.max_batch_size == 0:
        if not _fits(dims, actual.shape):
            message = (
                f"{subject}: the model expects {len(actual.shape)} dimensions (shape"
                f" {_text(actual.shape)}) but the model configuration specifies"
                f" {len(dims)} dimensions (shape {_text(dims)})"
            )
            raise ConfigError(message)
        return
    if not actual.shape or actual.shape[0] != -1:
        message = (
            f"{subject}: for the model to support batching the shape should have at"
            " least 1 dimension and the first dimension must be -1; but shape"
            f" expected by the model is {_text(actual.shape)}"
        )
        raise ConfigError(message)
    complete = (-1, *dims)
    if not _fits(complete, actual.shape):
        message = (
            f"{subject}: the model expects {len(actual.shape)} dimensions (shape"
            f" {_text(actual.shape)}) but the model configuration specifies"
            f" {len(complete)} dimensions (an initial batch dimension because"
            " max_batch_size > 0 followed by the explicit tensor shape, making"
            f" complete shape {_text(complete)})"
        )
        raise ConfigError(message)


def _fits(declared: tuple[int, ...], actual: tuple[int, ...]) -> bool:
    return len(declared) == len(actual) and all(
        ours == theirs or -1 in (ours, theirs)
        for ours, theirs in zip(declared, actual, strict=True)
    )


def _text(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"
