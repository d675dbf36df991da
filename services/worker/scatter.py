"""A model's output arrays, checked and ready to be cut into replies."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.core import byte_tensor
from services.core.errors import BackendError
from services.worker.backend import Tensors
from services.worker.signature import Signature, TensorSpec

# Below this a copy into bytes is cheaper to cut than a memoryview.
_COPY_BYTES: Final = 1 << 14


class OutputBlock(NamedTuple):
    """One output of a whole batch.

    Attributes:
        row_shape: The client's shape of one row (of everything, if the model
            does not batch).
        row_elements: Elements of one row.
        row_bytes: Bytes of one row; 0 for BYTES.
        data: The bytes of all rows, row after row; empty for BYTES.
        elements: The elements of BYTES in the same order, else None.
    """

    row_shape: tuple[int, ...]
    row_elements: int
    row_bytes: int
    data: bytes | memoryview
    elements: list[bytes | str] | None

    def rows(self, first: int, count: int) -> bytes | memoryview:
        """Return the raw output contents of ``count`` rows from ``first`` on."""
        if self.elements is None:
            start = first * self.row_bytes
            return self.data[start : start + count * self.row_bytes]
        start = first * self.row_elements
        return byte_tensor.encode(
            self.elements[start : start + count * self.row_elements]
        )


def scatter(
    signature: Signature, wanted: Sequence[int], tensors: Tensors, rows: int
) -> dict[int, OutputBlock]:
    """Check the outputs of one execution.

    Args:
        signature: Of the model.
        wanted: Indices of the signature's outputs.
        tensors: What the backend returned.
        rows: Of the batch.

    Returns:
        By index, one block for each of ``wanted``.

    Raises:
        BackendError: an output is missing, or its datatype, its shape or its
            number of rows is not what the configuration promises.
    """
    blocks = {}
    for index in wanted:
        spec = signature.outputs[index]
        array = tensors.get(spec.name)
        if array is None:
            message = (
                f"model '{signature.model_name}' did not produce output '{spec.name}'"
            )
            raise BackendError(message)
        blocks[index] = _block(signature, spec, array, rows)
    return blocks


def _block(
    signature: Signature, spec: TensorSpec, array: NDArray[Any], rows: int
) -> OutputBlock:
    dtype = spec.datatype.numpy_dtype
    if array.dtype != dtype:
        message = (
            f"output '{spec.name}' of model '{signature.model_name}' is {array.dtype}"
            f" where the configuration says {spec.datatype.value} ({dtype})"
        )
        raise BackendError(message)
    shape = array.shape
    if signature.is_batched:
        _check_rows(signature, spec, shape, rows)
        model_shape = shape[1:]
        row_elements = array.size // rows if rows else 0
    else:
        model_shape, row_elements = shape, array.size
    is_bytes = spec.datatype.byte_size is None
    return OutputBlock(
        row_shape=spec.to_client(model_shape),
        row_elements=row_elements,
        row_bytes=0 if is_bytes else row_elements * dtype.itemsize,
        data=b"" if is_bytes else _bytes_of(array),
        elements=array.reshape(-1).tolist() if is_bytes else None,
    )


def _check_rows(
    signature: Signature, spec: TensorSpec, shape: tuple[int, ...], rows: int
) -> None:
    if not shape or shape[0] != rows:
        actual = f"{shape[0]}" if shape else "none"
        message = (
            f"output '{spec.name}' of model '{signature.model_name}': expected {rows}"
            f" rows for the batch, the model produced {actual} (shape {list(shape)})"
        )
        raise BackendError(message)


def _bytes_of(array: NDArray[Any]) -> bytes | memoryview:
    if array.nbytes < _COPY_BYTES:
        return array.tobytes()
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data
