"""DLPack for CPU tensors, by numpy's implementation, BF16 included.

numpy exchanges everything but BF16. A BF16 tensor goes through it as UINT16: its
capsule is made by numpy, or read by numpy, with the datatype exchanged.

Source:
    dlpack.h of DLPack 0.8: a capsule named "dltensor" holds a DLManagedTensor.
"""

import ctypes
import importlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from services.worker.python_backend.datatypes import BF16, number_of
from services.worker.python_backend.model.errors import TritonModelException

_NAME: Final = b"dltensor"
_CPU_DEVICES: Final = (1, 3)  # memory of the host, pinned or not
_UNSIGNED: Final = 1
_BFLOAT: Final = 4
_BITS_16: Final = 16


class _DataType(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)


class _Capsule:
    """A capsule as numpy wants to be given one."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def export(array: NDArray[Any], datatype: int) -> object:
    """Return a capsule that shares ``array``'s memory.

    Raises:
        TritonModelException: its datatype does not exist in DLPack.
    """
    if array.dtype.hasobject:
        raise TritonModelException("DLPack does not have the datatype BYTES")
    capsule: object = array.__dlpack__()
    if datatype == BF16:
        _tensor_in(capsule).dtype.code = _BFLOAT
    return capsule


def take(source: Any) -> tuple[NDArray[Any], int]:  # noqa: ANN401 - any exporter
    """Return the array in a capsule or an exporter, and its datatype.

    The memory is shared, unless it is a GPU's: that is copied.

    Raises:
        TritonModelException: it is not in C order, or of no datatype we know.
    """
    if hasattr(source, "__dlpack_device__"):
        device = int(source.__dlpack_device__()[0])
        if device not in _CPU_DEVICES:
            source = source.cpu()
    capsule = source.__dlpack__() if hasattr(source, "__dlpack__") else source
    tensor = _tensor_in(capsule)
    if tensor.device_type not in _CPU_DEVICES:
        return take(_with_torch(capsule))
    if not _is_in_c_order(tensor):
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are"
            " stored in C-Order are supported."
        )
    dtype = tensor.dtype
    if dtype.code == _BFLOAT and dtype.bits == _BITS_16 and dtype.lanes == 1:
        dtype.code = _UNSIGNED
        return _array_of(capsule), BF16
    array = _array_of(capsule)
    number = number_of(array.dtype)
    if number is None:
        raise TritonModelException(f"no datatype for DLPack's {array.dtype}")
    return array, number


def _array_of(capsule: object) -> NDArray[Any]:
    exporter: Any = _Capsule(capsule)
    array: NDArray[Any] = np.from_dlpack(exporter)
    return array


def _with_torch(capsule: object) -> Any:  # noqa: ANN401 - a torch.Tensor
    """Bring a GPU's tensor to the host; whoever made it has torch."""
    torch = importlib.import_module("torch.utils.dlpack")
    return torch.from_dlpack(capsule).cpu()


def _tensor_in(capsule: object) -> _DLTensor:
    return _DLTensor.from_address(_pointer_of(capsule, _NAME))


def _is_in_c_order(tensor: _DLTensor) -> bool:
    if not tensor.strides:
        return True
    expected = 1
    for axis in reversed(range(tensor.ndim)):
        size = tensor.shape[axis]
        if size == 0:
            return True
        if size != 1 and tensor.strides[axis] != expected:
            return False
        expected *= size
    return True
