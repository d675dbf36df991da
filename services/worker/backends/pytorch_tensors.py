"""Tensors between numpy and PyTorch, without a copy where both can have the bytes."""

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from services.core.datatype import DataType
from services.core.errors import BackendError

_TORCH_TYPES: Final = {
    DataType.BOOL: torch.bool,
    DataType.UINT8: torch.uint8,
    DataType.UINT16: torch.uint16,
    DataType.UINT32: torch.uint32,
    DataType.UINT64: torch.uint64,
    DataType.INT8: torch.int8,
    DataType.INT16: torch.int16,
    DataType.INT32: torch.int32,
    DataType.INT64: torch.int64,
    DataType.FP16: torch.float16,
    DataType.FP32: torch.float32,
    DataType.FP64: torch.float64,
    DataType.BF16: torch.bfloat16,
}
_DATATYPES: Final = {ours: theirs for theirs, ours in _TORCH_TYPES.items()}


def datatype_of(dtype: torch.dtype | None) -> DataType | None:
    """Return what the protocol calls a type of PyTorch's; None if it has none."""
    return _DATATYPES.get(dtype)


def to_torch(name: str, array: NDArray[Any], datatype: DataType) -> Any:
    """Return an input as the model takes it: a tensor, or a list of str for BYTES.

    The tensor is the array's memory: who writes to it writes there.

    Raises:
        BackendError: an element of BYTES is not UTF-8.
    """
    if datatype is DataType.BYTES:
        try:
            return [element.decode() for element in array.reshape(-1)]
        except UnicodeDecodeError as error:
            message = (
                f"input '{name}' holds an element that is not UTF-8, which PyTorch"
                f" cannot take: {error}"
            )
            raise BackendError(message) from error
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if datatype is DataType.BF16 else tensor


def to_numpy(name: str, value: Any, datatype: DataType) -> NDArray[Any]:
    """Return an output as an array, in memory of its own or in the tensor's.

    Args:
        name: For messages.
        value: On the CPU, if it is a tensor.
        datatype: What the configuration says.

    Raises:
        BackendError: the model gave something else.
    """
    if isinstance(value, torch.Tensor):
        actual = _DATATYPES.get(value.dtype)
        if actual is not datatype:
            found = str(value.dtype) if actual is None else actual.config_name
            message = (
                f"configuration expects datatype {datatype.config_name} for output"
                f" '{name}', model provides {found}"
            )
            raise BackendError(message)
        if datatype is DataType.BF16:
            value = value.contiguous().view(torch.uint16)
        array: NDArray[Any] = value.numpy(force=True)
        return array
    is_text = isinstance(value, list) and all(isinstance(one, str) for one in value)
    if not is_text or datatype is not DataType.BYTES:
        message = f"output '{name}' must be of type Tensor or List[str]"
        raise BackendError(message)
    texts = np.empty(len(value), object)
    texts[:] = value
    return texts
