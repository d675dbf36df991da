"""Batches of requests that differ only in their ids' and tensors' contents.

Three or more of them are cheaper to handle as the rows of a matrix of bytes, a
column range at a time, than one by one. Decoding and encoding `simple` (two
INT32[16] in and out) costs 21 us a batch of any size up to 64; one by one it is
16 us for 1, 27 for 4, 39 for 7, 245 for 64. What this path gives is what the
general one gives.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from services.core import wire_format
from services.core.errors import ServingError
from services.worker.batch import Member
from services.worker.gather import GatherBuffer
from services.worker.layout import Layout
from services.worker.request_reader import Request, RequestReader
from services.worker.signature import Signature

MIN_REQUESTS: Final = 3
# Above this the bytes themselves are the cost, and comparing them adds to it.
MAX_STRIDE_BYTES: Final = 2048

_REQUEST_TAG: Final = b"\x12"
_LAST_ASCII: Final = 127
# An id whose length is one byte: its contents begin at the third.
_SHORT_ID_FIELD: Final = 129


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformBatch:
    """One execution of requests with equal headers.

    Attributes:
        layout: Of every request.
        count: Requests.
        rows: Of all requests together.
        inputs: By input name; valid until the next batch is decoded.
        id_fields: One row for each request: its ``id`` with tag and length.
    """

    layout: Layout
    count: int
    rows: int
    inputs: dict[str, NDArray[Any]]
    id_fields: NDArray[np.uint8]

    @property
    def outputs(self) -> tuple[int, ...]:
        """Indices of the signature's outputs that everybody asked for."""
        return self.layout.outputs

    @property
    def outcomes(self) -> tuple[Member, ...]:
        """The requests one by one."""
        return tuple(
            Member(self.layout, row.tobytes(), index * self.layout.rows)
            for index, row in enumerate(self.id_fields)
        )


class UniformDecoder:
    """Decodes what can be decoded at one stroke."""

    def __init__(
        self,
        signature: Signature,
        reader: RequestReader,
        buffers: list[GatherBuffer],
    ) -> None:
        """Share reader and buffers with the decoder of all other batches."""
        self._signature = signature
        self._reader = reader
        self._buffers = buffers
        self._free = np.zeros(0, np.bool_)
        self._free_key: tuple[Layout, int, int] | None = None

    def decode(self, message: bytes) -> UniformBatch | None:
        """Return the batch, or None if it is not uniform (or not in order)."""
        if not self._signature.is_batched or not message.startswith(_REQUEST_TAG):
            return None
        length, start = wire_format.decode_varint(message, 1)
        stride = start + length
        count, rest = divmod(len(message), stride)
        if rest or count < MIN_REQUESTS or stride > MAX_STRIDE_BYTES:
            return None
        first = self._first(message, start, stride)
        if first is None:
            return None
        layout = first.layout
        matrix = np.frombuffer(message, np.uint8).reshape(count, stride)
        id_end = first.spans[0][0] - len(layout.prefixes[0][1]) - len(layout.header)
        id_start = id_end - len(first.id_field)
        free = self._free_columns(first, id_start, id_end, stride)
        if not ((matrix == matrix[0]) | free).all():
            return None
        id_fields = matrix[:, id_start:id_end]
        if (id_fields > _LAST_ASCII).any():
            return None  # ids are checked to be UTF-8 one by one
        rows = count * layout.rows
        return UniformBatch(
            layout=layout,
            count=count,
            rows=rows,
            inputs=self._gather(first, matrix, rows),
            id_fields=id_fields,
        )

    def _first(self, message: bytes, start: int, end: int) -> Request | None:
        """Return the first request, if its like can be handled here."""
        try:
            first = self._reader.read(message, start, end)
        except ServingError:
            return None  # the general path says which request, and why
        fits = (
            first.source is message
            and first.layout.spans
            and len(first.id_field) <= _SHORT_ID_FIELD
        )
        return first if fits else None

    def _free_columns(
        self, first: Request, id_start: int, id_end: int, stride: int
    ) -> NDArray[np.bool_]:
        """Return which columns may differ: contents, not tags and lengths."""
        key = (first.layout, id_start, id_end)
        if key != self._free_key:
            free = np.zeros(stride, np.bool_)
            free[id_start + 2 : id_end] = True
            for start, end in first.spans:
                free[start:end] = True
            self._free, self._free_key = free, key
        return self._free

    def _gather(
        self, first: Request, matrix: NDArray[np.uint8], rows: int
    ) -> dict[str, NDArray[Any]]:
        inputs = {}
        count = len(matrix)
        for tensor, (start, end) in zip(first.layout.inputs, first.spans, strict=True):
            buffer = self._buffers[tensor.index]
            buffer.matrix(count, end - start)[:] = matrix[:, start:end]
            name = self._signature.inputs[tensor.index].name
            inputs[name] = buffer.array((rows, *tensor.row_shape))
        return inputs
