"""Contradictions between the records of one configuration.

What one record alone can tell is refused where it is built, in ``services.core``;
here is what takes two. Every function raises a FieldError that names the field to
change, so that the caller can add the line.

Source: the rules are those of Triton's ValidateModelConfig; its words are kept
where a user may know them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from services.control.ensemble_validation import require_ensemble
from services.core.model_config import (
    CHECKPOINT_PARAMETER,
    ENSEMBLE_PLATFORM,
    FieldError,
    ModelConfig,
    ModelInput,
    ModelOutput,
    OldestStrategy,
)
from services.core.model_config_fields import VARIABLE
from services.core.model_config_padding import PADDING_PARAMETER

TENSORRT_PLATFORM: Final = "tensorrt_plan"

PLATFORMS_OF_BACKEND: Final[Mapping[str, tuple[str, ...]]] = {
    "onnxruntime": ("onnxruntime_onnx",),
    "tensorrt": (TENSORRT_PLATFORM,),
    "pytorch": ("pytorch_libtorch", "torch_aoti"),
    "tensorflow": ("tensorflow_savedmodel", "tensorflow_graphdef"),
}
"""The platforms that a backend goes by; other backends accept any."""


def require_directory_name(name: str, directory: str) -> None:
    """Refuse a name that is not the folder's.

    Args:
        name: As written; "" if it is not.
        directory: The folder's name inside the repository.

    Raises:
        FieldError: at ``name``.
    """
    if name not in ("", directory):
        msg = (
            f"unexpected directory name '{directory}' for model '{name}', directory "
            "name must equal model name"
        )
        raise FieldError(msg, "name")


def require_consistent(config: ModelConfig) -> None:
    """Refuse a completed configuration that contradicts itself.

    Args:
        config: Completed: name, backend and tensors are filled in. Whether its
            instance groups are normalised makes no difference.

    Raises:
        FieldError: the first contradiction found.
    """
    _require_backend(config)
    _require_unique("input", config.inputs)
    _require_unique("output", config.outputs)
    _require_tensors("input", config.inputs, config)
    _require_tensors("output", config.outputs, config)
    _require_batch_tensors(config)
    _require_batch_sizes(config)
    _require_cacheable(config)
    _require_states(config)
    if config.ensemble is not None:
        require_ensemble(config)
    elif config.platform == ENSEMBLE_PLATFORM:
        msg = (
            f"ensemble scheduling must be set for ensemble {config.name} whose "
            f"platform is {ENSEMBLE_PLATFORM}"
        )
        raise FieldError(msg, "platform")
    _require_profiles(config)


def _require_backend(config: ModelConfig) -> None:
    if config.platform == ENSEMBLE_PLATFORM:
        if config.backend:
            msg = (
                f"ensemble model '{config.name}' must have platform type "
                f"'{ENSEMBLE_PLATFORM}' and empty backend type"
            )
            raise FieldError(msg, "backend")
        return
    if not config.backend:
        if config.platform:
            msg = f"unexpected platform type '{config.platform}' for {config.name}"
            raise FieldError(msg, "platform")
        msg = f"must specify 'platform' or 'backend' for '{config.name}'"
        raise FieldError(msg, "backend")
    platforms = PLATFORMS_OF_BACKEND.get(config.backend)
    if platforms is not None and config.platform not in platforms:
        msg = (
            "unexpected 'platform' and 'backend' pair, got:"
            f"{config.platform}, {config.backend}"
        )
        raise FieldError(msg, "platform" if config.platform else "backend")


def _require_unique(field: str, tensors: Sequence[ModelInput | ModelOutput]) -> None:
    seen: set[str] = set()
    for i, tensor in enumerate(tensors):
        if tensor.name in seen:
            msg = f"{field} '{tensor.name}' is declared twice"
            raise FieldError(msg, field, i, "name")
        seen.add(tensor.name)


def _require_tensors(
    field: str, tensors: Sequence[ModelInput | ModelOutput], config: ModelConfig
) -> None:
    for i, tensor in enumerate(tensors):
        if tensor.reshape == () and config.max_batch_size == 0:
            msg = (
                f"model {field} '{tensor.name}' cannot have empty reshape for "
                "non-batching model as scalar tensors are not supported"
            )
            raise FieldError(msg, field, i, "reshape")
        if config.platform == TENSORRT_PLATFORM:
            continue
        if tensor.is_shape_tensor:
            msg = "shape tensors are only supported for TensorRT platform"
            raise FieldError(msg, field, i, "is_shape_tensor")
        if tensor.is_non_linear_format_io:
            msg = "non-linear IO format is only supported for the TensorRT platform"
            raise FieldError(msg, field, i, "is_non_linear_format_io")


def _require_batch_tensors(config: ModelConfig) -> None:
    inputs = {tensor.name: tensor for tensor in config.inputs}
    outputs = {tensor.name: tensor for tensor in config.outputs}
    made: set[str] = set()
    for i, batch_input in enumerate(config.batch_inputs):
        path: tuple[str | int, ...] = ("batch_input", i)
        _require_source(batch_input.source_input, inputs, path)
        for j, name in enumerate(batch_input.target_names):
            if name in inputs or name in made:
                msg = f"batch input '{name}' is an input already"
                raise FieldError(msg, *path, "target_name", j)
            made.add(name)
    for i, batch_output in enumerate(config.batch_outputs):
        path = ("batch_output", i)
        _require_source(batch_output.source_input, inputs, path)
        source = inputs[batch_output.source_input]
        for j, name in enumerate(batch_output.target_names):
            if name not in outputs:
                msg = f"unknown target output name '{name}'"
                raise FieldError(msg, *path, "target_name", j)
            _require_source_dims(outputs[name], source, (*path, "target_name", j))
    is_ragged = any(tensor.allow_ragged_batch for tensor in config.inputs)
    if config.padding is not None and (is_ragged or made or config.batch_outputs):
        msg = "a model that declares padding cannot have ragged or batch tensors too"
        raise FieldError(msg, "parameters", PADDING_PARAMETER)


def _require_source(
    name: str, inputs: Mapping[str, ModelInput], path: tuple[str | int, ...]
) -> None:
    if name not in inputs:
        msg = f"unknown source input name '{name}'"
        raise FieldError(msg, *path, "source_input")


def _require_source_dims(
    output: ModelOutput, source: ModelInput, path: tuple[str | int, ...]
) -> None:
    """Refuse a batch output whose varying dimensions its source does not have."""
    varying = [i for i, dim in enumerate(output.model_dims) if dim == VARIABLE]
    if varying and varying[-1] >= len(source.model_dims):
        msg = (
            f"dimension {varying[-1]} of batch output '{output.name}' varies, but "
            f"source input '{source.name}' has only {len(source.model_dims)}"
        )
        raise FieldError(msg, *path)


def _require_batch_sizes(config: ModelConfig) -> None:
    dynamic, sequences = config.dynamic_batching, config.sequence_batching
    if dynamic is not None:
        sizes, path = dynamic.preferred_batch_sizes, ("dynamic_batching",)
        _require_at_most(config.max_batch_size, sizes, path)
    if sequences is not None and isinstance(sequences.strategy, OldestStrategy):
        sizes = sequences.strategy.preferred_batch_sizes
        _require_at_most(config.max_batch_size, sizes, ("sequence_batching", "oldest"))


def _require_at_most(
    max_batch_size: int, sizes: Sequence[int], path: tuple[str, ...]
) -> None:
    if sizes and max(sizes) > max_batch_size:
        scheduler = path[0].replace("_", " ")
        msg = (
            f"{scheduler} preferred batch size must be <= max batch size; got "
            f"{max(sizes)} with max_batch_size {max_batch_size}"
        )
        raise FieldError(msg, *path, "preferred_batch_size")


def _require_states(config: ModelConfig) -> None:
    """Refuse states that clients would have to send, or that could not be kept."""
    _require_checkpoint(config)
    inputs = {tensor.name for tensor in config.inputs}
    for i, state in enumerate(config.states):
        path = ("sequence_batching", "state", i)
        if state.input_name in inputs:
            msg = (
                f"state input '{state.input_name}' of model '{config.name}' is kept by "
                "the server: it must not be among the model's inputs"
            )
            raise FieldError(msg, *path, "input_name")
        for output in config.outputs:
            if output.name == state.output_name and (
                output.datatype is not state.datatype
            ):
                msg = (
                    f"state output '{output.name}' of model '{config.name}' is "
                    f"{state.datatype.config_name}, as an output it is "
                    f"{output.datatype.config_name}"
                )
                raise FieldError(msg, *path, "data_type")
        for reason, is_given in (
            ("is decoupled", config.decoupled),
            ("declares padding", config.padding is not None),
            ("has ragged batches", any(t.allow_ragged_batch for t in config.inputs)),
            (
                "has batch inputs or outputs",
                config.batch_inputs or config.batch_outputs,
            ),
        ):
            if is_given:
                msg = (
                    f"model '{config.name}' {reason}: the server cannot keep its states"
                )
                raise FieldError(msg, *path)


def _require_checkpoint(config: ModelConfig) -> None:
    value = config.parameters.get(CHECKPOINT_PARAMETER)
    path = ("parameters", CHECKPOINT_PARAMETER)
    if value not in (None, "true", "false"):
        raise FieldError(f"must be 'true' or 'false', not '{value}'", *path)
    if value == "true" and not config.states:
        msg = (
            f"model '{config.name}' has no state in sequence_batching that could be "
            "kept outside its worker"
        )
        raise FieldError(msg, *path)


def _require_cacheable(config: ModelConfig) -> None:
    if not config.response_cache_enabled:
        return
    reason = None
    if config.sequence_batching is not None:
        reason = "sequence batching scheduler"
    elif config.decoupled:
        reason = "'decoupled' transaction policy"
    if reason:
        msg = (
            f"the response cache does not support model {config.name} with {reason}; "
            "please disable the response cache"
        )
        raise FieldError(msg, "response_cache", "enable")


def _require_profiles(config: ModelConfig) -> None:
    if config.platform == TENSORRT_PLATFORM:
        return
    for i, group in enumerate(config.instance_groups):
        if group.profiles:
            msg = (
                f"instance group {group.name} of model {config.name} specifies the "
                "profile field, which is only supported for TensorRT models"
            )
            raise FieldError(msg, "instance_group", i, "profile")
