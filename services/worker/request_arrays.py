"""The tensors of single requests as arrays, and back."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.core import byte_tensor
from services.core.datatype import DataType
from services.worker.backend import RequestTensor


def array_of(tensor: RequestTensor, datatype: DataType) -> NDArray[Any]:
    """Return an input of one request, where it lies; BYTES as an object array."""
    if datatype is DataType.BYTES:
        elements = np.empty(int(np.prod(tensor.shape)), object)
        elements[:] = byte_tensor.decode(tensor.data)
        return elements.reshape(tensor.shape)
    return np.frombuffer(tensor.data, datatype.numpy_dtype).reshape(tensor.shape)


def bytes_of(array: NDArray[Any]) -> memoryview:
    """Return an array's elements as they go on the wire."""
    if array.dtype.hasobject:
        return memoryview(byte_tensor.encode(array.reshape(-1).tolist()))
    return memoryview(array.tobytes())
