"""The classification extension: an output as the labels of its largest elements. Pure.

Source: Triton's classification extension; the form of the strings is the one that
the real server answers with.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from services.core import byte_tensor
from services.core.datatype import DataType
from services.core.errors import InvalidRequestError

_INTEGERS: Final = frozenset(
    (
        DataType.INT8,
        DataType.INT16,
        DataType.INT32,
        DataType.INT64,
        DataType.UINT8,
        DataType.UINT16,
        DataType.UINT32,
        DataType.UINT64,
    )
)
_REALS: Final = frozenset((DataType.FP32, DataType.FP64))


def classify(
    raw: bytes | memoryview,
    datatype: DataType,
    *,
    rows: int,
    class_count: int,
    labels: Sequence[str],
) -> tuple[int, bytes]:
    """Return the largest elements of each row, in descending order.

    Args:
        raw: The contents of the output, row after row.
        datatype: Of its elements.
        rows: How many there are, >= 0.
        class_count: How many elements of a row are wanted, >= 1; of a row that
            has fewer, all.
        labels: Of the elements of a row; those beyond the last have none.

    Returns:
        How many elements a row now has, and a BYTES tensor of ``rows`` times as
        many strings ``value:index`` or ``value:index:label``. Equal values stand
        in the order of their indices, NaN last.

    Raises:
        InvalidRequestError: elements of ``datatype`` have no order.
    """
    if datatype not in _INTEGERS and datatype not in _REALS:
        message = (
            "class result not available for output due to unsupported type "
            f"'{datatype.value}'"
        )
        raise InvalidRequestError(message)
    values = np.frombuffer(raw, datatype.numpy_dtype)
    values = values.reshape(rows, -1 if rows else 0)
    wanted = min(class_count, values.shape[1])
    strings = [
        _string(row[index], index, labels)
        for row in values
        for index in _descending(row, datatype)[:wanted].tolist()
    ]
    return wanted, byte_tensor.encode(strings)


def _descending(row: np.ndarray, datatype: DataType) -> np.ndarray:
    if datatype in _REALS:
        row = np.where(np.isnan(row), -np.inf, row)
    # Sorted backwards and turned round, so that a stable sort keeps equal values
    # in the order of their indices.
    backwards: np.ndarray = np.argsort(row[::-1], kind="stable")[::-1]
    return len(row) - 1 - backwards


def _string(value: np.generic, index: int, labels: Sequence[str]) -> bytes:
    number = f"{value:f}" if isinstance(value, np.floating) else f"{value}"
    label = labels[index] if index < len(labels) else ""
    return (
        f"{number}:{index}:{label}".encode() if label else f"{number}:{index}".encode()
    )
