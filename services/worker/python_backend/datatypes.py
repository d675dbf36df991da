"""The datatypes, as far as a model's process needs them.

``services.core.datatype`` says more, but needs a newer Python than a model may have.
"""

from typing import Any, Final

import numpy as np

# By their numbers in the enum inference.DataType.
NUMBERS: Final = {
    "BOOL": 1,
    "UINT8": 2,
    "UINT16": 3,
    "UINT32": 4,
    "UINT64": 5,
    "INT8": 6,
    "INT16": 7,
    "INT32": 8,
    "INT64": 9,
    "FP16": 10,
    "FP32": 11,
    "FP64": 12,
    "BYTES": 13,
    "BF16": 14,
}
NAMES: Final = {number: name for name, number in NUMBERS.items()}
BYTES: Final = 13
BF16: Final = 14

# BF16, which numpy lacks, is carried as its bit pattern.
NUMPY_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
    "BF16": np.dtype(np.uint16),
}
_NUMBER_BY_KIND: Final = {
    (dtype.kind, dtype.itemsize): NUMBERS[name]
    for name, dtype in NUMPY_DTYPES.items()
    if name not in ("BYTES", "BF16")
}
_TEXT_KINDS: Final = "OSU"


def number_of(dtype: "np.dtype[Any]") -> int | None:
    """Return the datatype of arrays of ``dtype``; None if there is none."""
    if dtype.kind in _TEXT_KINDS:
        return BYTES
    return _NUMBER_BY_KIND.get((dtype.kind, dtype.itemsize))
