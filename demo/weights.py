"""Reads weights without the library that wrote them.

Nothing in a file is executed: of a pickle only the names that a list of tensors needs
are known, and they stand for functions of this module.
"""

import json
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Weights: TypeAlias = Mapping[str, NDArray[Any]]

_LENGTH: Final = struct.Struct("<Q")
_DTYPES: Final = {"F32": np.float32, "I64": np.int64}
_MAGIC: Final = 0x1950A86A20F9469CFC6C
_STORAGES: Final = {
    ("torch", "FloatStorage"): np.dtype("<f4"),
    ("torch", "LongStorage"): np.dtype("<i8"),
}


def read_safetensors(file: Path) -> Weights:
    """Return the tensors of a .safetensors file.

    Source: the format's documentation: the length of a JSON header, the header, data.
    """
    data = file.read_bytes()
    (length,) = _LENGTH.unpack_from(data)
    start = _LENGTH.size + length
    header = json.loads(data[_LENGTH.size : start])
    header.pop("__metadata__", None)
    found = {}
    for name, told in header.items():
        begin, end = (start + offset for offset in told["data_offsets"])
        array = np.frombuffer(data[begin:end], _DTYPES[told["dtype"]])
        found[name] = array.reshape(told["shape"])
    return found


def read_torch(file: Path) -> Weights:
    """Return the tensors of a .pth file in PyTorch's first format, before 1.6.

    Source: four pickles (a magic number, a version, the system, the tensors), then a
    pickle with the keys of the storages, and each as its element count and its data.

    Raises:
        ValueError: it has another format.
        pickle.UnpicklingError: it has more than tensors.
    """
    storages: dict[str, NDArray[Any]] = {}
    with file.open("rb") as stream:
        if _load(stream, storages) != _MAGIC:
            raise ValueError(f"{file.name} is not in PyTorch's first format")
        _load(stream, storages)
        _load(stream, storages)
        views = _load(stream, storages)
        for key in _load(stream, storages):
            _LENGTH.unpack(stream.read(_LENGTH.size))
            storage = storages[key]
            stream.readinto(storage.view(np.uint8).data)
    return {name: view() for name, view in views.items()}


def _load(stream: IO[bytes], storages: dict[str, NDArray[Any]]) -> Any:  # noqa: ANN401 - any pickle
    return _TensorUnpickler(stream, storages).load()


class _TensorUnpickler(pickle.Unpickler):
    """Knows storages and tensors, which become functions: their data comes later."""

    def __init__(self, stream: IO[bytes], storages: dict[str, NDArray[Any]]) -> None:
        super().__init__(stream)
        self._storages = storages

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as overridden
        if (module, name) in _STORAGES:
            return _STORAGES[module, name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _view
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"{module}.{name} is not a tensor")

    def persistent_load(self, pid: Any) -> NDArray[Any]:  # noqa: ANN401 - as overridden
        kind, dtype, key, _, count, *_ = pid
        if kind != "storage":
            raise pickle.UnpicklingError(f"{kind} is not a storage")
        if key not in self._storages:
            self._storages[key] = np.empty(count, dtype)
        return self._storages[key]


def _view(
    storage: NDArray[Any],
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    *_: object,
) -> Callable[[], NDArray[Any]]:
    def read() -> NDArray[Any]:
        size = storage.itemsize
        return np.lib.stride_tricks.as_strided(
            storage[offset:], shape, [size * stride for stride in strides]
        )

    return read
