"""Whether a model file and its configuration speak of the same tensors."""

from collections.abc import Sequence
from typing import TypeAlias

from services.core.datatype import DataType
from services.core.errors import ConfigError
from services.core.model_config import (
    BatchInputKind,
    ModelConfig,
    ModelInput,
    ModelOutput,
)
from services.worker.backend import FoundModel, FoundTensor
from services.worker.signature import TensorSpec, state_output_specs, state_specs

_Declared: TypeAlias = ModelInput | ModelOutput | TensorSpec


def check_model(config: ModelConfig, found: FoundModel) -> None:
    """Refuse a configuration that its model file contradicts.

    A model may have more outputs than are configured, but not more inputs: it
    could not run. Wildcards on either side fit everything.

    Raises:
        ConfigError: with Triton's text where it has one.
    """
    apart = _names_apart(config) | _batch_input_names(config)
    offered = [one for one in found.inputs if one.name not in apart]
    required = [one for one in config.inputs if not one.optional]
    if not len(required) <= len(offered) <= len(config.inputs):
        message = (
            f"unable to load model '{config.name}', configuration expects"
            f" {len(config.inputs)} inputs, model provides {len(offered)}"
        )
        raise ConfigError(message)
    _check(config, "input", config.inputs, found.inputs)
    _check(config, "output", config.outputs, found.outputs)
    _check_rows(config, found)
    _check_batch_inputs(config, found)
    _check(config, "input", state_specs(config), found.inputs)
    _check(config, "output", state_output_specs(config), found.outputs)


def _check_rows(config: ModelConfig, found: FoundModel) -> None:
    is_ragged = any(one.allow_ragged_batch for one in config.inputs)
    if is_ragged or found.max_rows is None:
        return
    if config.max_batch_size > found.max_rows:
        message = (
            f"unable to load model '{config.name}', configuration expects"
            f" max_batch_size {config.max_batch_size}, model provides {found.max_rows}"
        )
        raise ConfigError(message)


def _names_apart(config: ModelConfig) -> frozenset[str]:
    """Return the inputs of sequences, controls and states: declared on their own."""
    sequences = config.sequence_batching
    if sequences is None:
        return frozenset()
    controls = (one.name for one in sequences.control_inputs)
    states = (state.input_name for state in sequences.states)
    return frozenset((*controls, *states))


def _batch_input_names(config: ModelConfig) -> frozenset[str]:
    """Return the inputs that are made from the shapes of a batch."""
    return frozenset(name for one in config.batch_inputs for name in one.target_names)


def _check_batch_inputs(config: ModelConfig, found: FoundModel) -> None:
    for declared in config.batch_inputs:
        is_matrix = declared.kind is BatchInputKind.ITEM_SHAPE
        for name in declared.target_names:
            actual = _found("input", name, found.inputs)
            _check_datatype(config, "input", name, declared.datatype, actual)
            if len(actual.shape) != 1 + is_matrix:
                message = (
                    f"model '{config.name}', tensor '{name}': a batch input of kind"
                    f" BATCH_{declared.kind.name} has {1 + is_matrix} dimensions, the"
                    f" model provides {_text(actual.shape)}"
                )
                raise ConfigError(message)


def _check(
    config: ModelConfig,
    kind: str,
    declared: Sequence[_Declared],
    found: Sequence[FoundTensor],
) -> None:
    by_name = {tensor.name: tensor for tensor in found}
    cut = {name for one in config.batch_outputs for name in one.target_names}
    for tensor in declared:
        is_optional = isinstance(tensor, ModelInput) and tensor.optional
        if is_optional and tensor.name not in by_name:
            continue
        actual = _found(kind, tensor.name, found)
        _check_datatype(config, kind, tensor.name, tensor.datatype, actual)
        if isinstance(tensor, ModelInput) and tensor.allow_ragged_batch:
            _check_ragged(config, tensor, actual)
        elif isinstance(tensor, ModelInput) or tensor.name not in cut:
            # The shape of a batch output need not be the model's.
            _check_shape(config, tensor, actual)


def _found(kind: str, name: str, found: Sequence[FoundTensor]) -> FoundTensor:
    for tensor in found:
        if tensor.name == name:
            return tensor
    message = (
        f"unexpected inference {kind} '{name}', allowed {kind}s are:"
        f" {', '.join(tensor.name for tensor in found)}"
    )
    raise ConfigError(message)


def _check_datatype(
    config: ModelConfig,
    kind: str,
    name: str,
    datatype: DataType,
    actual: FoundTensor,
) -> None:
    if actual.datatype is not datatype:
        message = (
            f"unable to load model '{config.name}', configuration expects"
            f" datatype {datatype.config_name} for {kind}"
            f" '{name}', model provides {actual.datatype.config_name}"
        )
        raise ConfigError(message)


def _check_ragged(config: ModelConfig, tensor: ModelInput, actual: FoundTensor) -> None:
    """Refuse a ragged input that the model wants in rows."""
    reason = None
    if tensor.optional:
        reason = "which is not supported for optional input"
    elif actual.shape != (-1,):
        reason = f"model provides {_text(actual.shape)}"
    if reason is not None:
        message = (
            f"unable to load model '{config.name}', configuration expects model"
            f" provides input with shape [-1] for ragged input '{tensor.name}',"
            f" {reason}"
        )
        raise ConfigError(message)


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
