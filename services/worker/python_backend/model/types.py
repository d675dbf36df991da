"""Names and bytes of datatypes, as models ask for them."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from services.worker.python_backend.datatypes import (
    NAMES,
    NUMPY_DTYPES,
    number_of,
)
from services.worker.python_backend.model.tensor import encode_elements

_SCALARS: Final = {
    name: dtype.type for name, dtype in NUMPY_DTYPES.items() if name != "BF16"
} | {"BYTES": np.object_}


def triton_string_to_numpy(name: str) -> Any:  # noqa: ANN401 - a scalar type
    """Return numpy's type for "TYPE_INT32"; None if numpy has none."""
    name = name.removeprefix("TYPE_")
    return _SCALARS.get("BYTES" if name == "STRING" else name)


def triton_to_numpy_type(name: str | int) -> Any:  # noqa: ANN401 - a scalar type
    """Return numpy's type for "INT32", "TYPE_INT32" or the type's number."""
    return triton_string_to_numpy(NAMES[name] if isinstance(name, int) else name)


def numpy_to_triton_type(dtype: Any) -> int | None:  # noqa: ANN401 - as np.dtype takes it
    """Return the number of the datatype of arrays of ``dtype``."""
    return number_of(np.dtype(dtype))


def serialize_byte_tensor(array: NDArray[Any]) -> NDArray[np.object_] | None:
    """Return a BYTES tensor's elements, each behind its length, as one element.

    Args:
        array: Of bytes, str or objects; None is returned if it is none of these.
    """
    if array.dtype.kind not in "OSU":
        return None
    if array.size == 0:
        return np.empty([0], np.object_)
    return np.asarray(encode_elements(array.reshape(-1).tolist()), np.object_)


def deserialize_bytes_tensor(encoded: bytes) -> NDArray[np.object_]:
    """Return the elements of an encoded BYTES tensor, as a vector."""
    elements, position = [], 0
    while position < len(encoded):
        start = position + 4
        position = start + int.from_bytes(encoded[position:start], "little")
        elements.append(bytes(encoded[start:position]))
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array
