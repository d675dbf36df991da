"""Writes ONNX models without the onnx package: nodes, attributes, weights. Pure.

Source: the field numbers of onnx.proto, ONNX IR version 10.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from services.core.wire_format import encode_varint, length_prefix

IR_VERSION: Final = 10
OPSET_VERSION: Final = 20

Array: TypeAlias = NDArray[Any]
Attribute: TypeAlias = int | float | str | Sequence[int]
Shape: TypeAlias = Sequence[int | str]

# TensorProto.DataType
_ELEMENT_TYPES: Final = {"float32": 1, "int32": 6, "int64": 7, "bool": 9}
# AttributeProto: type, and the field that has the value.
_FLOAT: Final = (1, 2)
_INT: Final = (2, 3)
_STRING: Final = (3, 4)
_INTS: Final = (7, 8)
_VARINT: Final = 0
_FIXED32: Final = 5
_NEGATIVE: Final = 1 << 64


class Graph:
    """One graph that is being written; ``model`` returns its file."""

    def __init__(self, name: str) -> None:
        """Begin without a node."""
        self._name = name
        self._parts: list[bytes] = [_text(2, name)]
        self._names = 0

    def take(self, name: str, dtype: str, shape: Shape) -> str:
        """Declare an input, and return its name; a str in ``shape`` is open."""
        self._parts.append(_message(11, _value(name, dtype, shape)))
        return name

    def give(self, name: str, dtype: str, shape: Shape) -> None:
        """Declare an output."""
        self._parts.append(_message(12, _value(name, dtype, shape)))

    def weight(self, array: Array) -> str:
        """Add a constant tensor, and return its name."""
        name = self._next("w")
        content = np.ascontiguousarray(array)
        dims = b"".join(_number(1, size) for size in array.shape)
        kind = _number(2, _ELEMENT_TYPES[content.dtype.name])
        raw = content.tobytes()
        self._parts.append(_message(5, dims + kind + _text(8, name) + _message(9, raw)))
        return name

    def shape(self, *sizes: int) -> str:
        """Add a constant shape (or axes), and return its name."""
        return self.weight(np.array(sizes, np.int64))

    def node(
        self, operator: str, *inputs: str, output: str = "", **attributes: Attribute
    ) -> str:
        """Add a node with one output, and return the output's name."""
        name = output or self._next(operator.lower())
        self.nodes(operator, inputs, (name,), **attributes)
        return name

    def nodes(
        self,
        operator: str,
        inputs: Iterable[str],
        outputs: Iterable[str],
        **attributes: Attribute,
    ) -> None:
        """Add a node with any number of outputs."""
        content = [_text(1, name) for name in inputs]
        content += [_text(2, name) for name in outputs]
        content += [_text(3, self._next("node")), _text(4, operator)]
        content += [_message(5, _attribute(k, v)) for k, v in attributes.items()]
        self._parts.append(_message(1, b"".join(content)))

    def model(self) -> bytes:
        """Return the finished model."""
        opset = _text(1, "") + _number(2, OPSET_VERSION)
        return b"".join(
            [
                _number(1, IR_VERSION),
                _text(2, "nereid"),
                _message(7, b"".join(self._parts)),
                _message(8, opset),
            ]
        )

    def _next(self, stem: str) -> str:
        self._names += 1
        return f"{stem}_{self._names}"


def _value(name: str, dtype: str, shape: Shape) -> bytes:
    """Return a ValueInfoProto of a tensor."""
    dimensions = b"".join(
        _message(1, _text(2, one) if isinstance(one, str) else _number(1, one))
        for one in shape
    )
    tensor = _number(1, _ELEMENT_TYPES[dtype]) + _message(2, dimensions)
    return _text(1, name) + _message(2, _message(1, tensor))


def _attribute(name: str, value: Attribute) -> bytes:
    """Return an AttributeProto."""
    if isinstance(value, str):
        (kind, field), content = _STRING, _text(_STRING[1], value)
    elif isinstance(value, int):
        (kind, field), content = _INT, _number(_INT[1], value)
    elif isinstance(value, float):
        (kind, field) = _FLOAT
        content = encode_varint(field << 3 | _FIXED32) + struct.pack("<f", value)
    else:
        (kind, field) = _INTS
        content = b"".join(_number(field, one) for one in value)
    return _text(1, name) + content + _number(20, kind)


def _message(field: int, content: bytes) -> bytes:
    return length_prefix(field, len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _number(field: int, value: int) -> bytes:
    return encode_varint(field << 3 | _VARINT) + encode_varint(value % _NEGATIVE)
