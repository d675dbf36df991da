"""Batches of small requests that differ only in their ids and their tensors' contents.

That is nearly every batch of a busy model. Such a request is what stands before its
id, the id, and from there on what all have in common but for the contents; so its
tensors lie at known places from its end, and an input of the batch is one join. What
this path gives is what the general one gives.

Measured on `simple` (two INT32[16] in and out): eight requests whose ids have several
lengths, as perf_analyzer sends them, from their bytes to those of their replies: 19 us
by this path and 33 by the general one in a tight loop, 43 and 68 with cold caches.
"""

from typing import Final

import numpy as np

from services.worker.batch import Batch, Member
from services.worker.layout import Layout
from services.worker.request_reader import RequestReader
from services.worker.signature import Signature

# Above this the bytes themselves are the cost, and this path copies them twice.
LONGEST_TAIL_BYTES: Final = 2048

_REQUEST_TAG: Final = 0x12
_ID_TAG: Final = 0x1A
_LAST_SHORT_LENGTH: Final = 127


class UniformDecoder:
    """Decodes what can be decoded without looking at each request's fields."""

    def __init__(self, signature: Signature, reader: RequestReader) -> None:
        """Take from ``reader`` what it learned last."""
        self._signature = signature
        self._reader = reader
        self._specs = [
            (spec.name, spec.datatype.numpy_dtype) for spec in signature.inputs
        ]

    def decode(self, message: bytes) -> Batch | None:
        """Return the batch, or None if it is not uniform (or not in order)."""
        known = self._reader.last
        if known is None or not message or not self._signature.is_batched:
            return None
        names, layout = known
        tail_bytes = len(layout.header) + layout.raw_size
        if not layout.spans or tail_bytes > LONGEST_TAIL_BYTES:
            return None
        try:
            found = _requests(message, names, layout, tail_bytes)
        except IndexError:
            return None  # a request ends too early: the general path says which
        if found is None:
            return None
        outcomes, begins = found
        rows = len(begins) * layout.rows
        inputs = {}
        for tensor, (start, end) in zip(layout.inputs, layout.spans, strict=True):
            name, dtype = self._specs[tensor.index]
            contents = b"".join([message[at + start : at + end] for at in begins])
            inputs[name] = np.ndarray((rows, *tensor.row_shape), dtype, contents)
        return Batch(tuple(outcomes), rows, inputs, layout.outputs)


def _requests(
    message: bytes, names: bytes, layout: Layout, tail_bytes: int
) -> tuple[list[Member], list[int]] | None:
    """Return the members of a batch, and where the raw contents of each begin.

    Hot: one function, and every way out but one is a request of another kind.

    Args:
        message: A BatchRequest.
        names: The bytes before each request's id.
        layout: Of each request.
        tail_bytes: From the end of the id to the end of the request.

    Raises:
        IndexError: the message ends in the middle of a request.
    """
    header, prefixes, rows = layout.header, layout.prefixes, layout.rows
    names_bytes, header_bytes = len(names), len(header)
    starts_with = message.startswith
    members: list[Member] = []
    begins: list[int] = []
    position, end = 0, len(message)
    while position < end:
        length = message[position + 1]
        id_start = position + 2 + names_bytes
        if length > _LAST_SHORT_LENGTH:
            high = message[position + 2]
            length += (high - 1) << 7
            id_start += 1
            if high > _LAST_SHORT_LENGTH:
                return None
        if message[position] != _REQUEST_TAG:
            return None
        position = id_start - names_bytes + length
        id_end = position - tail_bytes
        if (
            position > end
            or id_end < id_start
            or not starts_with(names, id_start - names_bytes)
            or not starts_with(header, id_end)
        ):
            return None
        id_field = message[id_start:id_end]
        # ASCII, so its length is one byte; other texts are checked to be UTF-8.
        if id_field and (
            id_field[0] != _ID_TAG
            or id_field[1] != len(id_field) - 2
            or not id_field.isascii()
        ):
            return None
        begin = id_end + header_bytes
        for offset, prefix in prefixes:
            if not starts_with(prefix, begin + offset):
                return None
        members.append(Member(layout, id_field, len(members) * rows))
        begins.append(begin)
    return members, begins
