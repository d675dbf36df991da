"""Tensors in JSON, and the raw bytes that everything behind the door knows. Pure.

Source: KServe V2, "Tensor Data": ``data`` is the elements in row-major order, flat
or nested. FP16 and BF16 have no JSON form; BYTES are strings.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeAlias

import numpy as np
import orjson

from services.core import byte_tensor
from services.core.datatype import DataType
from services.core.errors import InternalError, InvalidRequestError
from services.router import rest_json

# What orjson prints as the elements of a tensor.
JsonElements: TypeAlias = "np.ndarray | orjson.Fragment | list[str]"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    """How a numeric datatype is read from JSON.

    Attributes:
        code: Its letter in ``struct``.
        types: What the JSON parser makes of its elements.
        kind: What Triton calls an element of another type not to be.
        target: What it could not be read as.
    """

    code: str
    types: frozenset[type]
    kind: str
    target: str


_INTEGER: Final = frozenset((int,))
_REAL: Final = frozenset((int, float))


def _signed(code: str) -> _Numbers:
    return _Numbers(
        code=code, types=_INTEGER, kind="signed-integer", target="signed-integer"
    )


def _unsigned(code: str) -> _Numbers:
    return _Numbers(
        code=code, types=_INTEGER, kind="unsigned-integer", target="unsigned-integer"
    )


def _real(code: str) -> _Numbers:
    return _Numbers(code=code, types=_REAL, kind="number", target="double")


_NUMBERS: Final[Mapping[DataType, _Numbers]] = {
    DataType.BOOL: _Numbers(
        code="?", types=frozenset((bool,)), kind="boolean", target="boolean"
    ),
    DataType.INT8: _signed("b"),
    DataType.INT16: _signed("h"),
    DataType.INT32: _signed("i"),
    DataType.INT64: _signed("q"),
    DataType.UINT8: _unsigned("B"),
    DataType.UINT16: _unsigned("H"),
    DataType.UINT32: _unsigned("I"),
    DataType.UINT64: _unsigned("Q"),
    DataType.FP32: _real("f"),
    DataType.FP64: _real("d"),
}


def raw_bytes(
    data: object,
    datatype: DataType,
    element_count: int,
    *,
    tensor_name: str,
    max_bytes: int,
) -> bytes:
    """Return the elements of JSON ``data`` as raw little-endian bytes.

    Args:
        data: As parsed; nested in any way.
        datatype: Of the tensor.
        element_count: As its shape says.
        tensor_name: For the messages.
        max_bytes: The most that the result may have.

    Raises:
        InternalError: not an array, elements of another type, or another number of
            them.
        InvalidRequestError: a number that the datatype cannot hold, too many
            bytes, or a datatype that JSON does not carry.
    """
    numbers = _NUMBERS.get(datatype)
    if numbers is None and datatype is not DataType.BYTES:
        message = (
            f"receiving {datatype.value} data via JSON is not supported. Please use "
            f"the binary data format for input {tensor_name}"
        )
        raise InvalidRequestError(message)
    item_size = 4 if numbers is None else struct.calcsize(numbers.code)
    _check_size(item_size * element_count, tensor_name, max_bytes)
    elements = rest_json.array(data, "data")
    types = set(map(type, elements))
    if list in types:
        elements = _flat(elements)
        types = set(map(type, elements))
    if numbers is None:
        return _raw_strings(elements, element_count, tensor_name, max_bytes)
    if not types <= numbers.types:
        message = (
            "Unable to parse 'data': attempt to access JSON "
            f"non-{numbers.kind} as {numbers.target}"
        )
        raise InternalError(message)
    _check_count(len(elements), element_count)
    try:
        return struct.pack(f"<{element_count}{numbers.code}", *elements)
    except (struct.error, OverflowError):
        message = (
            f"Unable to parse 'data': a value of input '{tensor_name}' is out of the "
            f"range of datatype {datatype.value}"
        )
        raise InvalidRequestError(message) from None


def _flat(elements: Sequence[object]) -> list[object]:
    """Return the leaves, in order; the depth is bounded by the parser's limit."""
    level = list(elements)
    while any(type(element) is list for element in level):
        level = list(chain.from_iterable(_parts(level)))
    return level


def _parts(level: Iterable[object]) -> Iterator[Iterable[object]]:
    for element in level:
        yield element if isinstance(element, list) else (element,)


def _raw_strings(
    elements: Sequence[object], element_count: int, tensor_name: str, max_bytes: int
) -> bytes:
    strings: list[bytes] = []
    for element in elements:
        if not isinstance(element, str):
            message = (
                "Unable to parse JSON bytes array: attempt to access JSON non-string "
                "as string"
            )
            raise InternalError(message)
        strings.append(element.encode(errors="surrogateescape"))
    _check_count(len(strings), element_count)
    _check_size(sum(map(len, strings)) + 4 * len(strings), tensor_name, max_bytes)
    return byte_tensor.encode(strings)


def _check_count(found: int, wanted: int) -> None:
    if found != wanted:
        message = (
            "Unable to parse 'data': Shape does not match true shape of 'data' field"
        )
        raise InternalError(message)


def _check_size(size: int, tensor_name: str, max_bytes: int) -> None:
    if size > max_bytes:
        message = (
            f"input '{tensor_name}' has {size} bytes, more than the {max_bytes} that "
            "--http-max-input-size allows"
        )
        raise InvalidRequestError(message)


def json_elements(raw: bytes | memoryview, datatype: DataType) -> JsonElements:
    """Return the elements of ``raw`` as what orjson prints.

    Numbers that JSON has no word for are printed as NaN, Infinity and -Infinity,
    strings that are no UTF-8 as the bytes they are, both as Triton does.

    Raises:
        InvalidRequestError: a datatype that JSON does not carry, or BYTES whose
            last element is cut off.
    """
    if datatype is DataType.BYTES:
        return _json_strings(raw)
    if datatype not in _NUMBERS:
        message = (
            f"sending {datatype.value} data via JSON is not supported. Please use the "
            "binary data format for output"
        )
        raise InvalidRequestError(message)
    elements = np.frombuffer(raw, datatype.numpy_dtype)
    if datatype is DataType.FP32:
        # Triton prints every float as the double it is equal to.
        elements = elements.astype(np.float64)
    elif datatype is DataType.BOOL:
        elements = np.frombuffer(raw, np.uint8) != 0
    if elements.dtype == np.float64 and not np.isfinite(elements).all():
        return orjson.Fragment(json.dumps(elements.tolist(), separators=(",", ":")))
    return elements


def _json_strings(raw: bytes | memoryview) -> JsonElements:
    elements = byte_tensor.decode(raw)
    try:
        return [element.decode() for element in elements]
    except UnicodeDecodeError:
        strings = [element.decode(errors="surrogateescape") for element in elements]
        text = json.dumps(strings, ensure_ascii=False, separators=(",", ":"))
        return orjson.Fragment(text.encode(errors="surrogateescape"))
