"""What Triton fills in where a configuration is silent.

Three steps, each pure and each leaving alone what is written: the backend from the
names of the files, the tensors from what the model file itself says, and the
defaults that the configuration endpoint shows.

Source: Triton's AutoCompleteBackendFields and NormalizeModelConfig, and the
AutoCompleteConfig of its ONNX Runtime backend.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from protos import model_config_pb2 as pb
from services.core.model_config import ENSEMBLE_PLATFORM, FieldError
from services.core.model_config_fields import VARIABLE

DEFAULT_MAX_BATCH_SIZE: Final = 4
"""Of --backend-config=default-max-batch-size, if it is not given."""

SILENT_BACKENDS: Final = frozenset(
    {
        "dyna_sequence",
        "identity",
        "openvino",
        "repeat",
        "sequence",
        "square",
        "tensorflow",
    }
)
"""Backends that know nothing of a model's tensors but what is written.

Any other that is not ours comes with a package of somebody else, and is asked.
"""

SELF_COMPLETING_BACKENDS: Final = frozenset({"python"})
"""Backends whose models may complete the whole configuration themselves."""

DEFAULT_SEQUENCE_IDLE_MICROSECONDS: Final = 1_000_000

_Tensor: TypeAlias = pb.ModelInput | pb.ModelOutput


@dataclass(frozen=True, slots=True)
class _ModelFile:
    filename: str
    backend: str
    platform: str = ""


# In the order they are looked for; the first of a backend is its default.
_MODEL_FILES: Final = (
    _ModelFile("model.savedmodel", "tensorflow", "tensorflow_savedmodel"),
    _ModelFile("model.graphdef", "tensorflow", "tensorflow_graphdef"),
    _ModelFile("model.plan", "tensorrt", "tensorrt_plan"),
    _ModelFile("model.onnx", "onnxruntime", "onnxruntime_onnx"),
    _ModelFile("model.xml", "openvino"),
    _ModelFile("model.pt", "pytorch", "pytorch_libtorch"),
    _ModelFile("model.pt2", "pytorch", "torch_aoti"),
    _ModelFile("model.py", "python"),
)


def fill_backend(config: pb.ModelConfig, files: Collection[str]) -> None:
    """Fill in backend, platform and default_model_filename.

    Args:
        config: As written, and with its name; changed in place.
        files: What the version's folder contains.

    Raises:
        FieldError: at ``backend``: nothing tells which one it is.
    """
    if config.HasField("ensemble_scheduling") and not config.backend:
        config.platform = config.platform or ENSEMBLE_PLATFORM
    if config.platform == ENSEMBLE_PLATFORM:
        return
    known = _known_file(config, files)
    if known is not None:
        config.backend = known.backend
        config.platform = config.platform or known.platform
        config.default_model_filename = config.default_model_filename or known.filename
    elif not (config.backend or config.platform or config.default_model_filename):
        _, _, backend = config.name.partition(".")
        if not backend:
            msg = (
                f"Could not determine backend for model '{config.name}' with no "
                "backend in model configuration. Expected a known model file, or model "
                "name of the form 'model.<backend_name>'."
            )
            raise FieldError(msg, "backend")
        config.backend = backend
        config.default_model_filename = f"model.{backend}"


def needs_inspection(config: pb.ModelConfig) -> bool:
    """Whether the model can say more than the configuration.

    Args:
        config: After ``fill_backend``.
    """
    if config.backend in SELF_COMPLETING_BACKENDS:
        return True
    if not config.backend or config.backend in SILENT_BACKENDS:
        return False
    has_inputs = bool(config.input or config.batch_input)
    return not (has_inputs and config.output)


def fill_tensors(
    config: pb.ModelConfig,
    found: pb.ModelConfig,
    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
) -> None:
    """Fill in inputs, outputs, max_batch_size and the scheduler.

    A written list of inputs or outputs is kept as it is, even if the file has
    more. The model can batch if the first dimension of every tensor is variable;
    max_batch_size then becomes the default, or what the file allows if that is less,
    unless it is written, and above 1 the
    dynamic batcher is switched on unless another scheduler is.

    Args:
        config: After ``fill_backend``; changed in place.
        found: The worker's answer: ``input`` and ``output`` with full shapes,
            batch dimension included; ``max_batch_size`` the most rows that the file
            allows, 0 if it sets no bound, -1 if its variable dimensions are no batch.
        default_max_batch_size: For models that can batch.

    Raises:
        FieldError: at ``max_batch_size``: it is written, but the model cannot
            batch.
    """
    tensors: list[_Tensor] = [*found.input, *found.output]
    can_batch = found.max_batch_size >= 0
    if can_batch and all(tensor.dims[:1] == [VARIABLE] for tensor in tensors):
        if config.max_batch_size == 0:
            most = found.max_batch_size or default_max_batch_size
            config.max_batch_size = max(most, 0)
        if config.max_batch_size > 1 and not config.WhichOneof("scheduling_choice"):
            config.dynamic_batching.SetInParent()
    elif config.max_batch_size != 0:
        msg = (
            f"autofill failed for model '{config.name}': model does not support "
            "batching while non-zero max_batch_size is specified"
        )
        raise FieldError(msg, "max_batch_size")
    is_batched = config.max_batch_size > 0
    if not config.input and not config.batch_input:
        apart = _names_apart(config)
        config.input.extend(each for each in found.input if each.name not in apart)
        _cut_batch_dimension(config.input, is_batched=is_batched)
    if not config.output:
        states = {state.output_name for state in config.sequence_batching.state}
        config.output.extend(each for each in found.output if each.name not in states)
        _cut_batch_dimension(config.output, is_batched=is_batched)


def fill_defaults(config: pb.ModelConfig) -> None:
    """Fill in what the configuration endpoint shows of every model.

    Args:
        config: With its scheduler and max_batch_size; changed in place.
    """
    if not config.version_policy.WhichOneof("policy_choice"):
        config.version_policy.latest.num_versions = 1
    preferred = [config.max_batch_size] if config.max_batch_size > 0 else []
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        if not batching.preferred_batch_size:
            batching.preferred_batch_size.extend(preferred)
    if config.HasField("sequence_batching"):
        sequences = config.sequence_batching
        sequences.max_sequence_idle_microseconds = (
            sequences.max_sequence_idle_microseconds
            or DEFAULT_SEQUENCE_IDLE_MICROSECONDS
        )
        if sequences.HasField("oldest") and not sequences.oldest.preferred_batch_size:
            sequences.oldest.preferred_batch_size.extend(preferred)
    if config.HasField("ensemble_scheduling"):
        config.model_transaction_policy.SetInParent()
        return
    optimization = config.optimization
    if not optimization.HasField("input_pinned_memory"):
        optimization.input_pinned_memory.enable = True
    if not optimization.HasField("output_pinned_memory"):
        optimization.output_pinned_memory.enable = True


def _names_apart(config: pb.ModelConfig) -> set[str]:
    """Return the inputs of sequences, which are declared on their own."""
    sequences = config.sequence_batching
    controls = {control.name for control in sequences.control_input}
    return controls | {state.input_name for state in sequences.state}


def _known_file(config: pb.ModelConfig, files: Collection[str]) -> _ModelFile | None:
    if config.backend:
        of_backend = [each for each in _MODEL_FILES if each.backend == config.backend]
        known = _match(config, of_backend)
        if known is None and not config.default_model_filename:
            known = _present(of_backend, files)
        return known or next(iter(of_backend), None)
    if config.platform or config.default_model_filename:
        return _match(config, _MODEL_FILES)
    return _present(_MODEL_FILES, files)


def _present(known: Iterable[_ModelFile], files: Collection[str]) -> _ModelFile | None:
    return next((each for each in known if each.filename in files), None)


def _match(config: pb.ModelConfig, known: Iterable[_ModelFile]) -> _ModelFile | None:
    # The platform is the stronger word; a file's name counts without one.
    for each in known:
        if config.platform:
            if config.platform == each.platform:
                return each
        elif config.default_model_filename == each.filename:
            return each
    return None


def _cut_batch_dimension(tensors: Iterable[_Tensor], *, is_batched: bool) -> None:
    for tensor in tensors:
        if is_batched:
            del tensor.dims[0]
        if not tensor.dims:
            # One value for each row: a shape of one, which the model gets as none.
            tensor.dims.append(1)
            tensor.reshape.SetInParent()
