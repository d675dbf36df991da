"""From a batch's outputs to the bytes of its replies, from templates."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from services.core import wire_format
from services.core.errors import ServingError
from services.core.status import status_of
from services.worker import wire
from services.worker.batch import Batch, Member, Refusal
from services.worker.layout import Layout
from services.worker.output_form import FormedOutput, form_output
from services.worker.scatter import OutputBlock
from services.worker.signature import Signature

_REPLY_FIELD: Final = 2
_RESPONSE_FIELD: Final = 1
_RAW_FIELD: Final = 6
_MAX_TEMPLATES: Final = 1024
_MAX_OPENINGS: Final = 64

Part: TypeAlias = bytes | memoryview
_RowShapes: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """How one output of one reply is cut out of the batch's.

    Attributes:
        output: Its index.
        before: What stands before its contents in the reply.
        row_bytes: Of the batch's output.
        size: Of the contents.
    """

    output: int
    before: bytes
    row_bytes: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Template:
    """What replies of the same layout and the same output shapes share.

    Attributes:
        metadata: ``ModelInferResponse.outputs``.
        cuts: One for each output, in the reply's order; None if sizes vary
            from reply to reply (BYTES).
        size: Of the response without its id field, if ``cuts``.
        openings: By length of the id field, what the reply begins with, down
            to that field; if ``cuts``.
    """

    metadata: bytes
    cuts: tuple[_Cut, ...] | None
    size: int
    openings: dict[int, bytes] = field(default_factory=dict)


class ReplyEncoder:
    """Encodes the replies of one instance."""

    def __init__(self, signature: Signature) -> None:
        """Begin with no template."""
        self._signature = signature
        self._head = wire.response_head(signature.model_name, signature.model_version)
        self._templates: dict[tuple[Layout, _RowShapes], _Template] = {}

    def encode(self, batch: Batch, blocks: Mapping[int, OutputBlock]) -> list[Part]:
        """Return the replies of a batch in pieces, ready to be joined.

        Refused requests are answered with their error.

        Args:
            batch: As decoded.
            blocks: By output index; at least those of ``batch.outputs``.
        """
        parts: list[Part] = []
        layout: Layout | None = None
        for outcome in batch.outcomes:
            if isinstance(outcome, Refusal):
                parts.append(encode_error(outcome.error))
                continue
            if outcome.layout is not layout:
                layout = outcome.layout
                template = self._template(layout, blocks)
                cuts = template.cuts
                openings = template.openings
            if cuts is None:
                parts += (
                    self._formed(outcome, blocks)
                    if layout.forms
                    else self._varying(outcome, template, blocks)
                )
                continue
            id_field = outcome.id_field
            opening = openings.get(len(id_field))
            if opening is None:
                opening = self._opening(template, len(id_field))
            parts.append(opening)
            parts.append(id_field)
            first_row = outcome.first_row
            for cut in cuts:
                start = first_row * cut.row_bytes
                parts.append(cut.before)
                parts.append(blocks[cut.output].data[start : start + cut.size])
        return parts

    def _template(self, layout: Layout, blocks: Mapping[int, OutputBlock]) -> _Template:
        shapes = tuple([blocks[output].row_shape for output in layout.outputs])
        template = self._templates.get((layout, shapes))
        if template is None:
            template = self._make_template(layout, blocks)
            if not layout.is_kept:
                return template
            if len(self._templates) >= _MAX_TEMPLATES:
                del self._templates[next(iter(self._templates))]
            self._templates[layout, shapes] = template
        return template

    def _make_template(
        self, layout: Layout, blocks: Mapping[int, OutputBlock]
    ) -> _Template:
        if layout.forms:
            return _Template(metadata=b"", cuts=None, size=0)
        rows = (layout.rows,) if self._signature.is_batched else ()
        metadata = b"".join(
            wire.response_output(
                self._signature.outputs[output], (*rows, *blocks[output].row_shape)
            )
            for output in layout.outputs
        )
        cuts: list[_Cut] = []
        before = metadata
        size = len(self._head)
        for output in layout.outputs:
            block = blocks[output]
            if block.elements is not None:
                return _Template(metadata=metadata, cuts=None, size=0)
            length = layout.rows * block.row_bytes
            before += wire_format.length_prefix(_RAW_FIELD, length)
            size += len(before) + length
            cuts.append(
                _Cut(
                    output=output,
                    before=before,
                    row_bytes=block.row_bytes,
                    size=length,
                )
            )
            before = b""
        return _Template(metadata=metadata, cuts=tuple(cuts), size=size)

    def _opening(self, template: _Template, id_size: int) -> bytes:
        opening = enclose(template.size + id_size) + self._head
        if len(template.openings) < _MAX_OPENINGS:
            template.openings[id_size] = opening
        return opening

    def _varying(
        self, member: Member, template: _Template, blocks: Mapping[int, OutputBlock]
    ) -> list[Part]:
        """Encode one reply whose size has to be counted."""
        parts: list[Part] = [self._head, member.id_field, template.metadata]
        for output in member.layout.outputs:
            raw = blocks[output].rows(member.first_row, member.layout.rows)
            parts += (wire_format.length_prefix(_RAW_FIELD, len(raw)), raw)
        return [enclose(sum(map(len, parts))), *parts]

    def _formed(self, member: Member, blocks: Mapping[int, OutputBlock]) -> list[Part]:
        """Encode one reply with outputs that are wanted in a form of their own."""
        layout = member.layout
        is_batched = self._signature.is_batched
        heads: list[Part] = []
        raws: list[Part] = []
        for index in layout.outputs:
            spec, block = self._signature.outputs[index], blocks[index]
            output = FormedOutput(
                datatype=spec.datatype,
                shape=((layout.rows,) if is_batched else ()) + block.row_shape,
                raw=block.rows(member.first_row, layout.rows),
            )
            form = layout.forms.get(index)
            if form is not None:
                try:
                    output = form_output(output, form, spec, is_batched=is_batched)
                except ServingError as error:
                    return [encode_error(error)]
            heads.append(
                wire.response_tensor(spec.name, output.datatype.value, output.shape)
            )
            raws += (wire_format.length_prefix(_RAW_FIELD, len(output.raw)), output.raw)
        parts = [self._head, member.id_field, *heads, *raws]
        return [enclose(sum(map(len, parts))), *parts]


def encode_error(error: Exception) -> bytes:
    """Return one reply that tells the client of ``error``."""
    code, text = status_of(error)
    return wire.error_reply(code.value[0], text)


def enclose(response_size: int) -> bytes:
    """Return what precedes a response of this size within a BatchResponse."""
    inner = wire_format.length_prefix(_RESPONSE_FIELD, response_size)
    return wire_format.length_prefix(_REPLY_FIELD, len(inner) + response_size) + inner
