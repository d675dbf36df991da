"""The control tensors of a sequence, as bytes behind a request: pure.

A model that keeps state is told, by inputs of its own that no client sends, where a
request stands in its sequence. Protobuf merges what is appended, so the inputs and
their contents are simply put behind the client's own bytes.

Source: Triton's user guide, "Control Inputs": one value a row.
"""

import hashlib
import struct
from collections.abc import Mapping
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

_FORMATS: Final[Mapping[DataType, str]] = {
    DataType.INT32: "<i",
    DataType.UINT32: "<I",
    DataType.INT64: "<q",
    DataType.UINT64: "<Q",
    DataType.FP32: "<f",
    DataType.BOOL: "<?",
}
_LONGEST_ID_BYTES: Final = 128


class SequenceControls:
    """Writes the controls of one model's requests."""

    __slots__ = ("_controls", "_model", "_shape")

    def __init__(
        self, model: str, batching: SequenceBatching, *, is_batched: bool
    ) -> None:
        """Write what ``batching`` declares; shape [1, 1] for a model that batches."""
        self._model = model
        self._shape = (1, 1) if is_batched else (1,)
        self._controls = tuple(
            (control_input.name, control)
            for control_input in batching.control_inputs
            for control in control_input.controls[:1]
        )

    def suffix(
        self, correlation_id: int | str, *, starts: bool, ends: bool, ready: bool = True
    ) -> bytes:
        """Return what is appended to a request of the sequence.

        Args:
            correlation_id: Of the sequence.
            starts: Whether the request is its first.
            ends: Whether it is its last.
            ready: False for a row that only fills a gap.

        Raises:
            InvalidRequestError: the id does not fit the model's datatype for it.
        """
        flags = {
            ControlKind.SEQUENCE_START: starts,
            ControlKind.SEQUENCE_END: ends,
            ControlKind.SEQUENCE_READY: ready,
        }
        message = pb.ModelInferRequest()
        for name, control in self._controls:
            if control.kind is ControlKind.SEQUENCE_CORRID:
                raw = self._id(correlation_id, control.datatype)
            else:
                raw = _flag(control, value=flags[control.kind])
            message.inputs.add(
                name=name, datatype=control.datatype.value, shape=self._shape
            )
            message.raw_input_contents.append(raw)
        return message.SerializeToString()

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


def _flag(control: SequenceControl, *, value: bool) -> bytes:
    pair = control.false_true or (0.0, 1.0)
    number = pair[value]
    if control.datatype is DataType.FP32:
        return struct.pack("<f", number)
    return struct.pack(_FORMATS[control.datatype], int(number))
