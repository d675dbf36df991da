"""Whether a request's inputs are what its model wants. Pure.

Source: as ``admission``. Triton walks the inputs of a request from the last to the
first, so with two wrong inputs it names the last; so do we.
"""

from collections.abc import Hashable, Sequence
from math import prod
from typing import Final, TypeAlias

from protos import inference_pb2
from services.core import byte_tensor
from services.core.datatype import DataType
from services.core.errors import InvalidRequestError
from services.core.model_config import ModelConfig, ModelInput
from services.core.shared_memory_region import SharedMemoryRegion
from services.router.tensor_sources import Content

InputTensor: TypeAlias = inference_pb2.ModelInferRequest.InferInputTensor

_BATCH_NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch "
    "dimension to be prepended to each input shape. If you want to specify the full "
    "shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on "
    "max_batch_size."
)


def check_inputs(
    tensors: Sequence[InputTensor],
    contents: Sequence[Content],
    config: ModelConfig,
    where: str,
) -> int:
    """Return the rows of a request's inputs, >= 1.

    Args:
        tensors: As the client describes them.
        contents: Of each.
        config: Of the model.
        where: Before every message.

    Raises:
        InvalidRequestError: the model wants others.
    """
    inputs = {tensor.name: tensor for tensor in tensors}
    if len(inputs) < len(tensors):
        raise InvalidRequestError(_repeated(tensors))
    _check_input_names(inputs, config, where)
    rows = _batch_size(inputs, config, where)
    for tensor in reversed(tensors):
        _check_input(tensor, _declared(config, tensor.name), config, where)
    model = config.name
    if rows > max(config.max_batch_size, 1):
        message = (
            f"{where}inference request batch-size must be <= "
            f"{config.max_batch_size} for '{model}'"
        )
        raise InvalidRequestError(message)
    for tensor, content in reversed(list(zip(tensors, contents, strict=True))):
        _check_size(tensor, content, config, where)
    if rows < 1 <= config.max_batch_size and tensors:
        message = f"{where}inference request batch-size must be >= 1 for '{model}'"
        raise InvalidRequestError(message)
    return max(rows, 1)


def shape_key(tensors: Sequence[InputTensor], config: ModelConfig) -> Hashable:
    """Return what must be equal within a batch: each input's dims, by name.

    A dimension that is padded counts as what it is padded to; of a ragged input it
    counts only that it is there.
    """
    ragged = {tensor.name for tensor in config.inputs if tensor.allow_ragged_batch}
    padding = config.padding
    key = []
    for tensor in tensors:
        dims = list(tensor.shape[1:])
        if padding is not None:
            for dim in padding.padded_dims(tensor.name):
                dims[dim] = padding.batch_key(dims[dim])
        key.append((tensor.name, () if tensor.name in ragged else tuple(dims)))
    return tuple(sorted(key))


def _repeated(tensors: Sequence[InputTensor]) -> str:
    names = [tensor.name for tensor in tensors]
    repeated = next(name for name in names if names.count(name) > 1)
    return f"input '{repeated}' already exists in request"


def _check_input_names(
    inputs: dict[str, InputTensor], config: ModelConfig, where: str
) -> None:
    required = [tensor.name for tensor in config.client_inputs if not tensor.optional]
    missing = [name for name in required if name not in inputs]
    count_is_wrong = not len(required) <= len(inputs) <= len(config.client_inputs)
    if count_is_wrong or (missing and set(inputs) <= _names(config)):
        fewest, most = len(required), len(config.client_inputs)
        expected = (
            f"{fewest} inputs"
            if fewest == most
            else f"number of inputs between {fewest} and {most}"
        )
        message = (
            f"{where}expected {expected} but got {len(inputs)} inputs for "
            f"model '{config.name}'. Got input(s) [{_quoted(inputs)}], but missing "
            f"required input(s) [{_quoted(missing)}]. Please provide all required "
            "input(s)."
        )
        raise InvalidRequestError(message)


def _names(config: ModelConfig) -> set[str]:
    return {tensor.name for tensor in config.client_inputs}


def _quoted(names: Sequence[str] | dict[str, InputTensor]) -> str:
    return ",".join(f"'{name}'" for name in names)


def _declared(config: ModelConfig, name: str) -> ModelInput:
    for tensor in config.client_inputs:
        if tensor.name == name:
            return tensor
    message = f"unexpected inference input '{name}' for model '{config.name}'"
    raise InvalidRequestError(message)


def _batch_size(inputs: dict[str, InputTensor], config: ModelConfig, where: str) -> int:
    """Return the rows all inputs agree on; 0 for a model that does not batch."""
    if config.max_batch_size == 0:
        return 0
    batch_size = None
    for name, tensor in reversed(inputs.items()):
        if not tensor.shape:
            message = (
                f"{where}input '{name}' has no shape but model requires batch "
                f"dimension for '{config.name}'"
            )
            raise InvalidRequestError(message)
        if batch_size is None:
            batch_size = tensor.shape[0]
        elif tensor.shape[0] != batch_size:
            message = (
                f"{where}input '{name}' batch size does not match other inputs for "
                f"'{config.name}'"
            )
            raise InvalidRequestError(message)
    return batch_size or 0


def _check_input(
    tensor: InputTensor, declared: ModelInput, config: ModelConfig, where: str
) -> None:
    if tensor.datatype != declared.datatype.value:
        known = tensor.datatype in DataType.__members__
        sent = tensor.datatype if known else "<invalid>"
        message = (
            f"{where}inference input '{tensor.name}' data-type is '{sent}', but "
            f"model '{config.name}' expects '{declared.datatype.value}'"
        )
        raise InvalidRequestError(message)
    batches = config.max_batch_size > 0
    shape = tuple(tensor.shape)
    dims = shape[1:] if batches else shape
    fits = len(dims) == len(declared.dims) and all(
        sent >= 0 and wanted in (sent, -1)
        for sent, wanted in zip(dims, declared.dims, strict=True)
    )
    if fits and (not batches or shape[0] >= 0):
        return
    expected = (-1, *declared.dims) if batches else declared.dims
    message = (
        f"{where}unexpected shape for input '{tensor.name}' for model "
        f"'{config.name}'. Expected {_shape_text(expected)}, got "
        f"{_shape_text(shape)}. {_BATCH_NOTE if batches else ''}"
    )
    raise InvalidRequestError(message)


def _shape_text(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _check_size(
    tensor: InputTensor, content: Content, config: ModelConfig, where: str
) -> None:
    model, shape = config.name, tuple(tensor.shape)
    if config.max_batch_size > 0:
        # A batch dimension of zero is read as one row, whose bytes are missing.
        shape = (max(shape[0], 1), *shape[1:])
    elements = prod(shape)
    datatype = DataType.from_protocol(tensor.datatype)
    if datatype.byte_size is None:
        # Strings in shared memory are looked at by the worker, who maps it.
        if not isinstance(content, SharedMemoryRegion):
            byte_tensor.validate(
                content,
                elements,
                tensor_name=tensor.name,
                model_name=model,
                prefix=where,
            )
        return
    expected = elements * datatype.byte_size
    found = (
        content.byte_size if isinstance(content, SharedMemoryRegion) else len(content)
    )
    if expected != found:
        message = (
            f"{where}input byte size mismatch for input '{tensor.name}' for model "
            f"'{model}'. Expected {expected}, got {found}"
        )
        raise InvalidRequestError(message)
