"""Tensors as models see them."""

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from services.worker.python_backend.datatypes import (
    BF16,
    BYTES,
    NAMES,
    NUMPY_DTYPES,
    number_of,
)
from services.worker.python_backend.model import dlpack
from services.worker.python_backend.model.errors import TritonModelException

_LENGTH: Final = struct.Struct("<I")


class Tensor:
    """A named tensor: an input of a request, or an output of a response."""

    __slots__ = ("_array", "_datatype", "_memory", "_name", "_offset", "_shape")

    def __init__(self, name: str, data: NDArray[Any]) -> None:
        """Name an array; it is not copied before it is sent.

        Raises:
            TritonModelException: ``data`` is no array of a datatype we know.
        """
        if not isinstance(data, np.ndarray):
            raise TritonModelException(
                f"tensor '{name}' must be given a numpy array, not"
                f" {type(data).__name__}"
            )
        datatype = number_of(data.dtype)
        if datatype is None:
            raise TritonModelException(
                f"tensor '{name}' has the unsupported dtype {data.dtype}"
            )
        if not data.dtype.isnative:
            data = data.astype(data.dtype.newbyteorder("="))
        self._name = name
        self._datatype = datatype
        self._array: NDArray[Any] | None = data
        self._shape = data.shape
        self._memory: Any = None
        self._offset = 0

    @classmethod
    def in_memory(
        cls,
        name: str,
        datatype: int,
        shape: tuple[int, ...],
        memory: Any,  # noqa: ANN401 - any buffer
        offset: int,
    ) -> "Tensor":
        """Return a tensor whose bytes lie in ``memory``, wrapped when asked for."""
        tensor = cls.__new__(cls)
        tensor._set(  # noqa: SLF001 - its own class
            name, datatype, shape, memory, offset
        )
        return tensor

    def _set(
        self,
        name: str,
        datatype: int,
        shape: tuple[int, ...],
        memory: Any,  # noqa: ANN401 - any buffer
        offset: int,
    ) -> None:
        self._name = name
        self._datatype = datatype
        self._shape = shape
        self._memory = memory
        self._offset = offset
        self._array = None

    def name(self) -> str:
        """Return the name."""
        return self._name

    def triton_dtype(self) -> str:
        """Return the datatype as model configurations write it."""
        name = NAMES[self._datatype]
        return "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}"

    def shape(self) -> tuple[int, ...]:
        """Return the sizes of all dimensions."""
        return tuple(self._shape)

    def is_cpu(self) -> bool:
        """Return whether the memory is the host's; here it always is."""
        return True

    def as_numpy(self) -> NDArray[Any]:
        """Return the tensor as an array; BYTES as objects of type bytes.

        Raises:
            TritonModelException: it is BF16, which numpy does not have.
        """
        if self._datatype == BF16:
            raise TritonModelException(
                f"tensor '{self._name}' is BF16, which numpy does not have; use"
                " to_dlpack()"
            )
        return self.bits()

    def bits(self) -> NDArray[Any]:
        """Return the array, that of BF16 as its bit pattern."""
        if self._array is None:
            self._array = self._wrap()
        return self._array

    @property
    def datatype(self) -> int:
        """The datatype's number in inference.DataType."""
        return self._datatype

    def to_dlpack(self) -> object:
        """Return a DLPack capsule that shares the tensor's memory."""
        return dlpack.export(self.bits(), self._datatype)

    def __dlpack__(self, *, stream: object = None, **_: object) -> object:
        """See ``to_dlpack``; the memory is the host's, so no stream matters."""
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return that the memory is the host's."""
        return (1, 0)

    @staticmethod
    def from_dlpack(name: str, source: object) -> "Tensor":
        """Return a tensor that shares a capsule's or an exporter's memory."""
        array, datatype = dlpack.take(source)
        tensor = Tensor(name, array)
        tensor._datatype = datatype  # BF16 comes as UINT16
        return tensor

    def renamed(self, name: str) -> "Tensor":
        """Return the same tensor under another name."""
        tensor = Tensor(name, self.bits())
        tensor._datatype = self._datatype  # BF16 comes as UINT16
        return tensor

    def __repr__(self) -> str:
        """Show what it is, not what it holds."""
        return f"Tensor({self._name!r}, {self.triton_dtype()}, {list(self._shape)})"

    def _wrap(self) -> NDArray[Any]:
        shape = self._shape
        if self._datatype == BYTES:
            elements = decode_elements(self._memory, self._offset, math.prod(shape))
            array = np.empty(len(elements), np.object_)
            array[:] = elements
            return array.reshape(shape)
        dtype = NUMPY_DTYPES[NAMES[self._datatype]]
        return np.ndarray(shape, dtype, self._memory, self._offset)


def contents(tensor: Tensor) -> tuple[int, NDArray[Any] | bytes]:
    """Return how many bytes a tensor takes, and what is to be copied there."""
    array = tensor.bits()
    if tensor.datatype == BYTES:
        encoded = encode_elements(array.reshape(-1).tolist())
        return len(encoded), encoded
    return array.nbytes, array


def write(
    memory: Any,  # noqa: ANN401 - a writable buffer
    offset: int,
    content: NDArray[Any] | bytes,
) -> None:
    """Copy what ``contents`` returned to its place."""
    if isinstance(content, bytes):
        memory[offset : offset + len(content)] = content
    elif content.size:
        np.ndarray(content.shape, content.dtype, memory, offset)[...] = content


def encode_elements(elements: Iterable[Any]) -> bytes:
    """Return the elements of a BYTES tensor, each behind its length."""
    parts: list[bytes] = []
    for element in elements:
        content = element if isinstance(element, bytes) else str(element).encode()
        parts += (_LENGTH.pack(len(content)), content)
    return b"".join(parts)


def decode_elements(
    memory: Any,  # noqa: ANN401 - any buffer
    offset: int,
    count: int,
) -> list[bytes]:
    """Return ``count`` elements of a BYTES tensor that begins at ``offset``."""
    elements: list[bytes] = []
    for _ in range(count):
        start = offset + _LENGTH.size
        offset = start + _LENGTH.unpack_from(memory, offset)[0]
        elements.append(bytes(memory[start:offset]))
    return elements


class _HasInputs(Protocol):
    def inputs(self) -> Sequence[Tensor]: ...


class _HasOutputs(Protocol):
    def output_tensors(self) -> Sequence[Tensor]: ...


def get_input_tensor_by_name(request: _HasInputs, name: str) -> Tensor | None:
    """Return a request's input of this name; None if it has none."""
    return next((one for one in request.inputs() if one.name() == name), None)


def get_output_tensor_by_name(response: _HasOutputs, name: str) -> Tensor | None:
    """Return a response's output of this name; None if it has none."""
    return next((one for one in response.output_tensors() if one.name() == name), None)
