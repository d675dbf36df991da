"""From the bytes of a batch to the model's input arrays."""

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from services.core import byte_tensor, wire_format
from services.core.errors import InternalError, InvalidRequestError, ServingError
from services.worker.batch import Batch, Member, Refusal
from services.worker.gather import (
    Allocate,
    GatherBuffer,
    gather_elements,
    pageable,
)
from services.worker.layout import Layout, Span
from services.worker.request_reader import Request, RequestReader
from services.worker.signature import Signature
from services.worker.uniform import UniformDecoder

_REQUEST_TAG: Final = 0x12
# From here on a view spares a second copy; below it costs more than it spares.
_COPY_ONCE_BYTES: Final = 2048
# From here on the copy of a request that is alone costs more than doing without.
_IN_PLACE_BYTES: Final = 64 << 10

Elements: TypeAlias = dict[int, list[bytes]]


@dataclass(slots=True, kw_only=True)
class _Assembly:
    """A batch while it is being put together."""

    outcomes: list[Member | Refusal] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    elements: list[Elements] = field(default_factory=list)
    rows: int = 0


class BatchDecoder:
    """Decodes the batches of one instance, one at a time."""

    def __init__(
        self,
        signature: Signature,
        reader: RequestReader,
        allocate: Allocate = pageable,
    ) -> None:
        """Allocate the input buffers."""
        self._signature = signature
        self._reader = reader
        self._buffers = [
            GatherBuffer(spec, signature, allocate) for spec in signature.inputs
        ]
        self._uniform = UniformDecoder(signature, reader)
        self._has_bytes = any(
            spec.datatype.byte_size is None for spec in signature.inputs
        )

    def decode(self, message: bytes) -> Batch:
        """Decode one BatchRequest.

        Raises:
            WireFormatError: the message is no BatchRequest.
        """
        return self._uniform.decode(message) or self.decode_each(message)

    def decode_each(self, message: bytes) -> Batch:
        """Decode one BatchRequest, request by request.

        A request that is not in order is refused by itself; the others run.

        Raises:
            WireFormatError: the message is no BatchRequest.
        """
        assembly = _Assembly()
        position, end = 0, len(message)
        while position < end:
            if message[position] != _REQUEST_TAG:
                text = f"unexpected field at byte {position} of a batch"
                raise wire_format.WireFormatError(text)
            length, start = wire_format.decode_varint(message, position + 1)
            position = start + length
            if position > end:
                text = "a batch ends in the middle of a request"
                raise wire_format.WireFormatError(text)
            try:
                self._admit(assembly, self._reader.read(message, start, position))
            except ServingError as error:
                assembly.outcomes.append(Refusal(error=error))
        return self._finish(assembly)

    def _admit(self, assembly: _Assembly, request: Request) -> None:
        layout = request.layout
        requests = assembly.requests
        if requests and layout is not requests[0].layout:
            self._check_company(requests[0].layout, layout)
        if requests and not self._signature.is_batched:
            text = f"model '{self._signature.model_name}' does not support batching"
            raise InternalError(text)
        if self._has_bytes:
            assembly.elements.append(self._elements(request))
        requests.append(request)
        assembly.outcomes.append(Member(layout, request.id_field, assembly.rows))
        assembly.rows += layout.rows

    def _check_company(self, first: Layout, other: Layout) -> None:
        if first.batch_key != other.batch_key:
            text = (
                f"model '{self._signature.model_name}': a request was put into a"
                " batch of other inputs or other shapes"
            )
            raise InternalError(text)

    def _elements(self, request: Request) -> Elements:
        """Return the elements of a request's BYTES inputs, by input index.

        Raises:
            InvalidRequestError: not as many as its shape says.
        """
        found: Elements = {}
        for tensor, (start, end) in zip(
            request.layout.inputs, request.spans, strict=True
        ):
            if tensor.byte_size is not None:
                continue
            elements = byte_tensor.decode(request.source[start:end])
            if len(elements) != tensor.element_count:
                name = self._signature.inputs[tensor.index].name
                text = (
                    f"expected {tensor.element_count} string elements for inference"
                    f" input '{name}' for model '{self._signature.model_name}',"
                    f" got {len(elements)}"
                )
                raise InvalidRequestError(text)
            found[tensor.index] = elements
        return found

    def _finish(self, assembly: _Assembly) -> Batch:
        requests = assembly.requests
        inputs: dict[str, NDArray[Any]] = {}
        outputs: tuple[int, ...] = ()
        if requests:
            layout = requests[0].layout
            same = all(request.layout is layout for request in requests)
            for index, row_shape in layout.batch_key:
                shape = (
                    (assembly.rows, *row_shape)
                    if self._signature.is_batched
                    else row_shape
                )
                name = self._signature.inputs[index].name
                if self._signature.inputs[index].datatype.byte_size is None:
                    elements = [e for one in assembly.elements for e in one[index]]
                    inputs[name] = gather_elements(elements, shape)
                else:
                    slot = _slot(layout, index) if same else None
                    inputs[name] = self._gather(requests, index, slot, shape)
            outputs = layout.outputs if same else _union(requests)
        return Batch(tuple(assembly.outcomes), assembly.rows, inputs, outputs)

    def _gather(
        self,
        requests: list[Request],
        index: int,
        slot: int | None,
        shape: tuple[int, ...],
    ) -> NDArray[Any]:
        """Return one input of all requests; ``slot`` is its place in each.

        It is copied unless there is only one, and that large and well placed.
        """
        spans = [
            request.spans[_slot(request.layout, index) if slot is None else slot]
            for request in requests
        ]
        total = sum([end - start for start, end in spans])
        if total >= _IN_PLACE_BYTES and len(requests) == 1:
            dtype = self._signature.inputs[index].datatype.numpy_dtype
            found = in_place(requests[0].source, spans[0], dtype, shape)
            if found is not None:
                return found
        buffer = self._buffers[index]
        target = buffer.reserve(total)
        position = 0
        for request, (start, end) in zip(requests, spans, strict=True):
            size = end - start
            source = request.source
            target[position : position + size] = (
                source[start:end]
                if size < _COPY_ONCE_BYTES
                else memoryview(source)[start:end]
            )
            position += size
        return buffer.array(shape)


def in_place(
    source: bytes | memoryview, span: Span, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any] | None:
    """Return a tensor where it lies; None if its elements lie astride.

    Whether they do is chance: ids, names and shapes before them have any length.
    """
    start, end = span
    found = np.frombuffer(source, np.uint8)[start:end].view(dtype)
    return found.reshape(shape) if found.flags.aligned else None


def _slot(layout: Layout, index: int) -> int:
    """Return the place of an input among the raw contents."""
    return next(i for i, tensor in enumerate(layout.inputs) if tensor.index == index)


def _union(requests: list[Request]) -> tuple[int, ...]:
    return tuple(sorted({o for request in requests for o in request.layout.outputs}))
