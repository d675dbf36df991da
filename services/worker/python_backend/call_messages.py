"""What a model asks of other models, and what they answer, on its way.

The bodies of CALL and ANSWER: a JSON object, and behind it the tensors, unless they
come in memory of their own.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from services.worker.python_backend import shared_memory

_LENGTH: Final = struct.Struct("<I")
# Up to here tensors travel behind the message itself.
INLINE_BYTES: Final = 1 << 14


class NamedTensor(NamedTuple):
    """One tensor of a call or an answer.

    Attributes:
        name: Among the inputs or outputs of the model that is called.
        datatype: A number of inference.DataType.
        shape: With rows.
        data: As on the wire.
    """

    name: str
    datatype: int
    shape: tuple[int, ...]
    data: Any


def pack(
    header: Mapping[str, Any], tensors: Sequence[NamedTensor]
) -> tuple[bytes, tuple[int, ...]]:
    """Return a body and the descriptor that goes with it, if any."""
    offsets, total = shared_memory.places([len(one.data) for one in tensors])
    places = [
        (one.name, one.datatype, one.shape, offset, len(one.data))
        for one, offset in zip(tensors, offsets, strict=True)
    ]
    text = json.dumps({**header, "tensors": places}).encode()
    head = _LENGTH.pack(len(text)) + text
    descriptors: tuple[int, ...] = ()
    if total <= INLINE_BYTES:
        memory: Any = bytearray(total)
    else:
        arena, descriptor = shared_memory.create(total)
        memory, descriptors = arena.memory, (descriptor,)
    for one, offset in zip(tensors, offsets, strict=True):
        memory[offset : offset + len(one.data)] = one.data
    return (head if descriptors else head + memory), descriptors


def unpack(
    body: bytes, descriptors: Sequence[int]
) -> tuple[dict[str, Any], list[NamedTensor]]:
    """Return what ``pack`` was given; the tensors' memory is theirs."""
    (length,) = _LENGTH.unpack_from(body)
    start = _LENGTH.size + length
    header: dict[str, Any] = json.loads(body[_LENGTH.size : start])
    # A copy, since arrays are made of it that may be written to.
    memory: Any = (
        shared_memory.adopt(descriptors[0]).memory
        if descriptors
        else bytearray(body[start:])
    )
    view = memoryview(memory)
    tensors = [
        NamedTensor(name, datatype, tuple(shape), view[offset : offset + size])
        for name, datatype, shape, offset, size in header.pop("tensors")
    ]
    return header, tensors
