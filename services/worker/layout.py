"""Learned request headers: where a request's tensors lie, without parsing it.

The bytes of a request between its ``id`` and its raw tensor contents (parameters,
inputs, outputs) repeat from call to call. The first is parsed in full; what was
learned from it is kept under those bytes. Same bytes, same verdict: a hit also
checks the tag and the length in front of every tensor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from services.core import wire_format
from services.core.datatype import DataType
from services.core.errors import InvalidRequestError
from services.core.shared_memory_region import SharedMemoryRegion
from services.worker.request_details import NO_DETAILS, RequestDetails
from services.worker.signature import Signature, TensorSpec, element_count

_RAW_FIELD: Final = 7
# Longer headers are not kept: parameters may have megabytes.
_LONGEST_KEPT_BYTES: Final = 4096
# A raw content's tag: number << 3 | 2 (length-delimited).
RAW_TAG: Final = 0x3A

Span: TypeAlias = tuple[int, int]
Spans: TypeAlias = tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputForm:
    """How a client wants an output, if not as it is.

    Attributes:
        class_count: Largest elements wanted as classes; 0: the tensor itself.
        region: Where the contents go instead of into the reply.
    """

    class_count: int = 0
    region: SharedMemoryRegion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedInput:
    """One input of a request, as the client described it.

    ``region`` is where its contents are, if not in the request.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    region: SharedMemoryRegion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A request's header.

    ``output_names`` is empty if all are wanted; ``output_forms`` has those of them,
    by name, that are wanted in a form of their own.
    """

    inputs: tuple[ParsedInput, ...]
    output_names: tuple[str, ...]
    output_forms: Mapping[str, OutputForm] = field(default_factory=dict)
    details: RequestDetails = NO_DETAILS


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLayout:
    """One tensor of a request.

    Attributes:
        index: Its place among the signature's inputs.
        row_shape: The model's shape of one row (of everything, if the model
            does not batch).
        element_count: Over all rows.
        byte_size: Over all rows; None for BYTES, whose size varies.
        region: Where its contents are, if not in the request.
    """

    index: int
    row_shape: tuple[int, ...]
    element_count: int
    byte_size: int | None
    region: SharedMemoryRegion | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """What all requests with the same header have in common.

    Attributes:
        header: The bytes themselves.
        rows: Of this request; 1 if the model does not batch.
        inputs: In the order of the raw contents.
        outputs: Indices of the signature's outputs, ascending: replies have the
            model's order, whatever order the client asked in.
        batch_key: Requests may share a batch if theirs are equal.
        spans: Start and end of each tensor, relative to the header's end; None
            if one is BYTES or in shared memory.
        prefixes: Offset and bytes of the tag and length before each tensor.
        raw_size: From the header's end to the request's.
        details: What else the header says.
        forms: By output index, the forms that are wanted.
        has_regions: Whether an input is in shared memory.
    """

    header: bytes
    rows: int
    inputs: tuple[InputLayout, ...]
    outputs: tuple[int, ...]
    batch_key: tuple[tuple[int, tuple[int, ...]], ...]
    spans: Spans | None
    prefixes: tuple[tuple[int, bytes], ...]
    raw_size: int
    details: RequestDetails = NO_DETAILS
    forms: Mapping[int, OutputForm] = field(default_factory=dict)
    has_regions: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether anything may be remembered for it: it is not too long."""
        return len(self.header) <= _LONGEST_KEPT_BYTES

    def locate(self, message: bytes, begin: int, end: int) -> Spans | None:
        """Return where each tensor lies in ``message``.

        Args:
            message: Holds the request.
            begin: Where the request's header ends.
            end: Where the request ends.

        Returns:
            None if the raw contents are not those of this layout. A tensor in
            shared memory is nowhere: its span is empty.
        """
        if self.spans is None:
            return self._walk(message, begin, end)
        if end - begin != self.raw_size:
            return None
        for offset, prefix in self.prefixes:
            if not message.startswith(prefix, begin + offset):
                return None
        return tuple([(begin + start, begin + stop) for start, stop in self.spans])

    def _walk(self, message: bytes, begin: int, end: int) -> Spans | None:
        spans = []
        position = begin
        for tensor in self.inputs:
            if tensor.region is not None:
                spans.append((position, position))
                continue
            if position >= end or message[position] != RAW_TAG:
                return None
            length, position = wire_format.decode_varint(message, position + 1)
            if tensor.byte_size not in (None, length):
                return None
            spans.append((position, position + length))
            position += length
        return tuple(spans) if position == end else None


def make_layout(
    signature: Signature,
    header: bytes,
    request: ParsedRequest,
    input_indices: Mapping[str, int],
    output_indices: Mapping[str, int],
) -> Layout:
    """Learn one header.

    The router has admitted the request, so a refusal here means that the two
    disagree about the model; the request fails, nothing else.

    Raises:
        InvalidRequestError: an unknown name, a wrong datatype, a negative
            dimension, or row counts that differ.
    """
    inputs = []
    rows = 1
    for position, tensor in enumerate(request.inputs):
        index = _index(input_indices, tensor.name, "input", signature)
        layout, tensor_rows = _input_layout(signature, index, tensor)
        if position and tensor_rows != rows:
            text = (
                f"input '{tensor.name}' has {tensor_rows} rows where the others of"
                f" the request have {rows}, model '{signature.model_name}'"
            )
            raise InvalidRequestError(text)
        rows = tensor_rows
        inputs.append(layout)
    _check_names(signature, [one.index for one in inputs])
    names = request.output_names or output_indices
    wanted = {_index(output_indices, name, "output", signature) for name in names}
    spans, prefixes, raw_size = _fixed_spans(inputs)
    return Layout(
        header=header,
        rows=rows,
        inputs=tuple(inputs),
        outputs=tuple(sorted(wanted)),
        batch_key=tuple(sorted((one.index, one.row_shape) for one in inputs)),
        spans=spans,
        prefixes=prefixes,
        raw_size=raw_size,
        details=request.details,
        forms={
            output_indices[name]: form for name, form in request.output_forms.items()
        },
        has_regions=any(one.region is not None for one in inputs),
    )


def _check_names(signature: Signature, indices: list[int]) -> None:
    for index, spec in enumerate(signature.inputs):
        times = indices.count(index)
        if times > 1 or (times == 0 and not spec.optional):
            text = (
                f"input '{spec.name}' is given {times} times, model"
                f" '{signature.model_name}' expects it once"
            )
            raise InvalidRequestError(text)


def _input_layout(
    signature: Signature, index: int, tensor: ParsedInput
) -> tuple[InputLayout, int]:
    spec = signature.inputs[index]
    shape = tensor.shape
    if DataType.from_protocol(tensor.datatype) is not spec.datatype:
        text = (
            f"input '{spec.name}' is {tensor.datatype}, model"
            f" '{signature.model_name}' expects {spec.datatype.value}"
        )
        raise InvalidRequestError(text)
    rows, row_shape = 1, shape
    if signature.is_batched:
        rows, row_shape = (shape[0], shape[1:]) if shape else (-1, ())
    _check_dims(signature, spec, shape, row_shape)
    count = element_count(shape)
    byte_size = spec.datatype.byte_size
    layout = InputLayout(
        index=index,
        row_shape=spec.to_model(row_shape),
        element_count=count,
        byte_size=None if byte_size is None else count * byte_size,
        region=tensor.region,
    )
    return layout, rows


def _check_dims(
    signature: Signature,
    spec: TensorSpec,
    shape: tuple[int, ...],
    row_shape: tuple[int, ...],
) -> None:
    fits = (
        len(row_shape) == len(spec.dims)
        and len(shape) - len(row_shape) == int(signature.is_batched)
        and all(size >= 0 for size in shape)
        and all(
            dim in (-1, size) for dim, size in zip(spec.dims, row_shape, strict=True)
        )
    )
    if not fits:
        dims = ([-1] if signature.is_batched else []) + list(spec.dims)
        text = (
            f"input '{spec.name}' has shape {list(shape)}, model"
            f" '{signature.model_name}' expects {dims}"
        )
        raise InvalidRequestError(text)


def _fixed_spans(
    inputs: list[InputLayout],
) -> tuple[Spans | None, tuple[tuple[int, bytes], ...], int]:
    spans, prefixes, position = [], [], 0
    for tensor in inputs:
        if tensor.byte_size is None or tensor.region is not None:
            return None, (), 0
        prefix = wire_format.length_prefix(_RAW_FIELD, tensor.byte_size)
        prefixes.append((position, prefix))
        start = position + len(prefix)
        position = start + tensor.byte_size
        spans.append((start, position))
    return tuple(spans), tuple(prefixes), position


def _index(
    indices: Mapping[str, int], name: str, kind: str, signature: Signature
) -> int:
    index = indices.get(name)
    if index is None:
        text = (
            f"unexpected inference {kind} '{name}' for model '{signature.model_name}'"
        )
        raise InvalidRequestError(text)
    return index
