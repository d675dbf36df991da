"""The control tensors of a sequence, as bytes within a request: pure.

A model that keeps state is told, by inputs of its own that no client sends, where a
request stands in its sequence. They are put behind the client's own inputs, their
contents behind the client's own contents.

Source: Triton's user guide, "Control Inputs": one value a row.
"""

import hashlib
import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from protos import inference_pb2 as pb
from services.core import byte_tensor
from services.core.datatype import DataType
from services.core.errors import InvalidRequestError
from services.core.model_config_sequences import (
    ControlKind,
    SequenceBatching,
    SequenceControl,
)
from services.core.sequence_state import NUMBER_INPUT
from services.core.wire_format import decode_varint, length_prefix

_FORMATS: Final[Mapping[DataType, str]] = {
    DataType.INT32: "<i",
    DataType.UINT32: "<I",
    DataType.INT64: "<q",
    DataType.UINT64: "<Q",
    DataType.FP32: "<f",
    DataType.BOOL: "<?",
}
_LONGEST_ID_BYTES: Final = 128
_MOST_IDS: Final = 4096
_RAW_FIELD: Final = 7
# ModelInferRequest.inputs; what comes before has lower ones.
_INPUT_TAG: Final = 0x2A
_LENGTH_DELIMITED: Final = 2
_NUMBER: Final = struct.Struct("<Q")


class SequenceControls:
    """Writes the controls of one model's requests."""

    __slots__ = (
        "_around_id",
        "_has_numbers",
        "_head",
        "_id_datatype",
        "_ids",
        "_model",
        "_replaces_place",
    )

    def __init__(
        self, model: str, batching: SequenceBatching, *, is_batched: bool
    ) -> None:
        """Write what ``batching`` declares; shape [1, 1] for a model that batches."""
        shape = (1, 1) if is_batched else (1,)
        controls = tuple(_controls(batching))
        self._model = model
        self._has_numbers = bool(batching.states)
        # A request that is put back stands elsewhere than its client said.
        self._replaces_place = batching.iterative_sequence
        self._id_datatype: DataType | None = None
        # The contents of ids that were written lately, with tag and length.
        self._ids: dict[int | str, bytes] = {}
        message = pb.ModelInferRequest()
        for name, control in controls:
            datatype = control.datatype
            message.inputs.add(name=name, datatype=datatype.value, shape=shape)
            if control.kind is ControlKind.SEQUENCE_CORRID:
                self._id_datatype = datatype
        if self._has_numbers:
            message.inputs.add(name=NUMBER_INPUT, datatype="UINT64", shape=shape)
        self._head = message.SerializeToString()
        # What comes before the id and behind it, by START, END and READY.
        self._around_id = {
            flags: _around_id([control for _, control in controls], *flags)
            for flags in itertools.product((False, True), repeat=3)
        }

    def write_into(
        self,
        body: bytes,
        inputs_end: int,
        correlation_id: int | str,
        *,
        starts: bool,
        ends: bool,
        ready: bool = True,
        number: int = 0,
    ) -> bytes:
        """Return a request with its controls.

        Args:
            body: The client's, a serialized ModelInferRequest.
            inputs_end: Where its inputs end.
            correlation_id: Of the sequence.
            starts: Whether the request is its first.
            ends: Whether it is its last.
            ready: False for a row that only fills a gap.
            number: Of the sequence's life, for a model whose state the worker keeps.

        Raises:
            InvalidRequestError: the id does not fit the model's datatype for it.
        """
        before, after = self._around_id[starts, ends, ready]
        parts = [
            body[:inputs_end],
            self._head,
            body[inputs_end:],
            before,
            self._id_content(correlation_id),
            after,
        ]
        if self._has_numbers:
            parts.append(_content(_NUMBER.pack(number)))
        if self._replaces_place:
            parts.append(_place(correlation_id, starts=starts, ends=ends))
        return b"".join(parts)

    def check_id(self, correlation_id: int | str) -> None:
        """Refuse an id that the model could not be told.

        Raises:
            InvalidRequestError: it does not fit the model's datatype for it.
        """
        self._id_content(correlation_id)

    def _id_content(self, correlation_id: int | str) -> bytes:
        """Return the id's contents with tag and length; nothing if it is not told."""
        if self._id_datatype is None:
            return b""
        content = self._ids.get(correlation_id)
        if content is None:
            content = _content(self._id(correlation_id, self._id_datatype))
            if len(self._ids) >= _MOST_IDS:
                self._ids.clear()
            self._ids[correlation_id] = content
        return content

    def _id(self, correlation_id: int | str, datatype: DataType) -> bytes:
        if datatype is DataType.BYTES:
            text = str(correlation_id).encode()
            if len(text) > _LONGEST_ID_BYTES:
                message = (
                    f"string correlation ID cannot be longer than {_LONGEST_ID_BYTES} "
                    "characters"
                )
                raise InvalidRequestError(message)
            return byte_tensor.encode([text])
        if isinstance(correlation_id, str):
            # A number that stands for the text: the same in every request, and as
            # good as never that of another sequence.
            digest = hashlib.blake2b(correlation_id.encode(), digest_size=8).digest()
            return digest[: datatype.byte_size]
        try:
            return struct.pack(_FORMATS[datatype], correlation_id)
        except struct.error:
            message = (
                f"correlation ID {correlation_id} of model '{self._model}' does not "
                f"fit into {datatype.value}"
            )
            raise InvalidRequestError(message) from None


def _controls(batching: SequenceBatching) -> Iterator[tuple[str, SequenceControl]]:
    for control_input in batching.control_inputs:
        for control in control_input.controls[:1]:
            yield control_input.name, control


def _around_id(
    controls: Sequence[SequenceControl],
    starts: bool,  # noqa: FBT001 - one of a product
    ends: bool,  # noqa: FBT001
    ready: bool,  # noqa: FBT001
) -> tuple[bytes, bytes]:
    """Return the contents that precede the id's, and those that follow."""
    values = {
        ControlKind.SEQUENCE_START: starts,
        ControlKind.SEQUENCE_END: ends,
        ControlKind.SEQUENCE_READY: ready,
    }
    before: list[bytes] = []
    after: list[bytes] = []
    parts = before
    for control in controls:
        if control.kind is ControlKind.SEQUENCE_CORRID:
            parts = after
        else:
            parts.append(_content(_flag(control, value=values[control.kind])))
    return b"".join(before), b"".join(after)


def _content(raw: bytes) -> bytes:
    return length_prefix(_RAW_FIELD, len(raw)) + raw


def _flag(control: SequenceControl, *, value: bool) -> bytes:
    pair = control.false_true or (0.0, 1.0)
    number = pair[value]
    if control.datatype is DataType.FP32:
        return struct.pack("<f", number)
    return struct.pack(_FORMATS[control.datatype], int(number))


def _place(correlation_id: int | str, *, starts: bool, ends: bool) -> bytes:
    """Return parameters that, appended, take the place of the client's own."""
    message = pb.ModelInferRequest()
    if isinstance(correlation_id, str):
        message.parameters["sequence_id"].string_param = correlation_id
    else:
        message.parameters["sequence_id"].int64_param = correlation_id
    message.parameters["sequence_start"].bool_param = starts
    message.parameters["sequence_end"].bool_param = ends
    return message.SerializeToString()


def inputs_end(body: bytes) -> int:
    """Return where more inputs may be put, behind those of a request.

    That is where a worker expects them, before outputs and contents; or the end, if
    the fields are in another order than protobuf's own.

    Args:
        body: A serialized ModelInferRequest.
    """
    position = found = 0
    end = len(body)
    has_passed = False
    while position < end:
        tag = body[position]
        if tag & 7 != _LENGTH_DELIMITED:
            return end  # no field of a request
        length, start = body[position + 1], position + 2
        if length > 127:  # noqa: PLR2004 - a varint of several bytes
            length, start = decode_varint(body, position + 1)
        position = start + length
        if tag > _INPUT_TAG:
            has_passed = True
        elif has_passed:
            return end
        else:
            found = position
    return found
