"""The control tensors of a sequence, as bytes behind a request: pure.

A model that keeps state is told, by inputs of its own that no client sends, where a
request stands in its sequence. Protobuf merges what is appended, so the inputs and
their contents are simply put behind the client's own bytes.

Source: Triton's user guide, "Control Inputs": one value a row.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping
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
from services.core.wire_format import length_prefix

_FORMATS: Final[Mapping[DataType, str]] = {
    DataType.INT32: "<i",
    DataType.UINT32: "<I",
    DataType.INT64: "<q",
    DataType.UINT64: "<Q",
    DataType.FP32: "<f",
    DataType.BOOL: "<?",
}
_LONGEST_ID_BYTES: Final = 128
_RAW_FIELD: Final = 7
_NUMBER: Final = struct.Struct("<Q")


class SequenceControls:
    """Writes the controls of one model's requests."""

    __slots__ = (
        "_flags",
        "_has_numbers",
        "_head",
        "_id_datatype",
        "_model",
        "_order",
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
        self._order = tuple(control.kind for _, control in controls)
        # Contents with tag and length, by kind: for False and for True.
        self._flags: dict[ControlKind, tuple[bytes, bytes]] = {}
        self._id_datatype: DataType | None = None
        message = pb.ModelInferRequest()
        for name, control in controls:
            datatype = control.datatype
            message.inputs.add(name=name, datatype=datatype.value, shape=shape)
            if control.kind is ControlKind.SEQUENCE_CORRID:
                self._id_datatype = datatype
            else:
                no, yes = _flag(control, value=False), _flag(control, value=True)
                self._flags[control.kind] = (_content(no), _content(yes))
        if self._has_numbers:
            message.inputs.add(name=NUMBER_INPUT, datatype="UINT64", shape=shape)
        self._head = message.SerializeToString()

    def suffix(
        self,
        correlation_id: int | str,
        *,
        starts: bool,
        ends: bool,
        ready: bool = True,
        number: int = 0,
    ) -> bytes:
        """Return what is appended to a request of the sequence.

        Args:
            correlation_id: Of the sequence.
            starts: Whether the request is its first.
            ends: Whether it is its last.
            ready: False for a row that only fills a gap.
            number: Of the sequence's life, for a model whose state the worker keeps.

        Raises:
            InvalidRequestError: the id does not fit the model's datatype for it.
        """
        values = {
            ControlKind.SEQUENCE_START: starts,
            ControlKind.SEQUENCE_END: ends,
            ControlKind.SEQUENCE_READY: ready,
        }
        parts = [self._head]
        for kind in self._order:
            if kind in values:
                parts.append(self._flags[kind][values[kind]])
            elif self._id_datatype is not None:
                parts.append(_content(self._id(correlation_id, self._id_datatype)))
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
        if self._id_datatype is not None:
            self._id(correlation_id, self._id_datatype)

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
