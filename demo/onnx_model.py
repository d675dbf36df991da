"""Writes one small ONNX model without the onnx package. Pure.

Source: the field numbers of onnx.proto, ONNX IR version 8.
"""

import enum
from collections.abc import Iterable
from typing import Final

from services.core.wire_format import encode_varint, length_prefix

IR_VERSION: Final = 8
OPSET_VERSION: Final = 13
VARINT: Final = 0


class ElementType(enum.IntEnum):
    """TensorProto.DataType, as far as it is needed here."""

    INT32 = 6


def add_sub_model(*, width: int) -> bytes:
    """Return a model with OUTPUT0 = INPUT0 + INPUT1 and OUTPUT1 = INPUT0 - INPUT1.

    Args:
        width: All four are INT32 of shape ``(batch, width)``.
    """
    inputs = ("INPUT0", "INPUT1")
    nodes = [_node("Add", inputs, "OUTPUT0"), _node("Sub", inputs, "OUTPUT1")]
    graph = b"".join(
        [
            *(_message(1, node) for node in nodes),
            _text(2, "simple"),
            *(_message(11, _value(name, width)) for name in inputs),
            *(_message(12, _value(name, width)) for name in ("OUTPUT0", "OUTPUT1")),
        ]
    )
    opset = _text(1, "") + _number(2, OPSET_VERSION)
    return b"".join(
        [
            _number(1, IR_VERSION),
            _text(2, "nereid"),
            _message(7, graph),
            _message(8, opset),
        ]
    )


def _node(operator: str, inputs: Iterable[str], output: str) -> bytes:
    """Return a NodeProto."""
    named = b"".join(_text(1, name) for name in inputs)
    return named + _text(2, output) + _text(3, operator.lower()) + _text(4, operator)


def _value(name: str, width: int) -> bytes:
    """Return a ValueInfoProto of an INT32 tensor ``(batch, width)``."""
    dimensions = _message(1, _text(2, "batch")) + _message(1, _number(1, width))
    tensor = _number(1, ElementType.INT32) + _message(2, dimensions)
    return _text(1, name) + _message(2, _message(1, tensor))


def _message(field: int, content: bytes) -> bytes:
    return length_prefix(field, len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _number(field: int, value: int) -> bytes:
    return encode_varint(field << 3 | VARINT) + encode_varint(value)
