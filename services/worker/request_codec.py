"""Requests one by one: from their bytes to calls, from answers to bytes."""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from services.core import wire_format
from services.core.errors import ServingError
from services.worker import wire
from services.worker.backend import (
    BackendAnswer,
    BackendCall,
    BackendFailure,
    BackendReply,
    ReplyTensor,
    RequestTensor,
    Rescheduled,
)
from services.worker.batch_spans import request_spans
from services.worker.layout import OutputForm
from services.worker.output_form import FormedOutput, form_output
from services.worker.reply_encoder import Part, enclose, encode_error
from services.worker.request_reader import Request, RequestReader
from services.worker.signature import Signature

# BatchResponse.timing: tag and length, then three fixed64 behind their tags.
_TIMING: Final = struct.Struct("<2sBQBQBQ")
_TIMING_PREFIX: Final = b"\x0a\x1b"
_RAW_FIELD: Final = 6
_RESPONSE_FIELD: Final = 1
_SHORT: Final = 128
_MAX_HEADS: Final = 1024
# BatchResponse.reply without an outcome.
EMPTY_REPLY: Final = b"\x12\x00"
# The same, with ``rescheduled``.
RESCHEDULED_REPLY: Final = b"\x12\x02\x18\x01"


def timing(input_ns: int, infer_ns: int, output_ns: int) -> bytes:
    """Return BatchResponse.timing."""
    return _TIMING.pack(_TIMING_PREFIX, 0x09, input_ns, 0x11, infer_ns, 0x19, output_ns)


class RequestDecoder:
    """Decodes the batches of one instance, request by request."""

    def __init__(self, signature: Signature) -> None:
        """Begin with nothing learned."""
        self._is_batched = signature.is_batched
        self._reader = RequestReader(
            signature, wire.parse_request, wire.canonical_request
        )

    def decode(self, message: bytes) -> list[Request | ServingError]:
        """Return the requests of a batch; in place of a refused one, why.

        Raises:
            WireFormatError: the message is no BatchRequest.
        """
        return [
            self._read(message, start, end) for start, end in request_spans(message)
        ]

    def calls(self, requests: Sequence[Request | ServingError]) -> list[BackendCall]:
        """Return a call for each request that was not refused."""
        return [self._call(one) for one in requests if isinstance(one, Request)]

    def _read(self, message: bytes, start: int, end: int) -> Request | ServingError:
        try:
            return self._reader.read(message, start, end)
        except ServingError as error:
            return error

    def _call(self, request: Request) -> BackendCall:
        layout = request.layout
        view = memoryview(request.source)
        rows = (layout.rows,) if self._is_batched else ()
        return BackendCall(
            _text_of(request.id_field),
            tuple(
                [
                    RequestTensor(
                        tensor.index, rows + tensor.row_shape, view[start:end]
                    )
                    for tensor, (start, end) in zip(
                        layout.inputs, request.spans, strict=True
                    )
                ]
            ),
            layout.outputs,
            layout.details,
        )


class AnswerEncoder:
    """Encodes the answers of one instance; for several threads."""

    def __init__(self, signature: Signature) -> None:
        """Begin with nothing learned."""
        self._signature = signature
        self._head = wire.response_head(signature.model_name, signature.model_version)
        self._outputs: dict[tuple[int, str, tuple[int, ...]], bytes] = {}

    def reply(self, request: Request, answer: BackendAnswer) -> list[Part]:
        """Return an entry of BatchResponse.reply in pieces, ready to be joined."""
        if isinstance(answer, BackendFailure):
            return [wire.error_reply(*answer)]
        if isinstance(answer, Rescheduled):
            return [RESCHEDULED_REPLY]
        try:
            parts = self._response(request, answer)
        except ServingError as error:
            return [encode_error(error)]
        return [enclose(sum(map(len, parts))), *parts]

    def streamed(
        self,
        place: tuple[int, int],
        request: Request,
        answer: BackendAnswer | None,
        *,
        is_final: bool,
        now_ns: Callable[[], int],
    ) -> bytes:
        """Return a BatchResponse with one streamed reply.

        Args:
            place: Batch and request, as in RequestPlace.
            request: That is answered.
            answer: None to say only that there will be no more.
            is_final: Whether there will be no more.
            now_ns: A monotonic clock, for the time that this takes.
        """
        if answer is None:
            return wire.streamed_reply(
                wire.streamed_head(*place, is_final=is_final), []
            )
        began_ns = now_ns()
        if isinstance(answer, BackendReply):
            try:
                parts = self._response(request, answer)
            except ServingError as error:
                answer = BackendFailure(*wire.error_status(error))
        if isinstance(answer, BackendFailure):
            reply: list[Part] = [wire.reply_error(*answer)]
        else:
            size = sum(map(len, parts))
            reply = [wire_format.length_prefix(_RESPONSE_FIELD, size), *parts]
        head = wire.streamed_head(
            *place, is_final=is_final, output_ns=now_ns() - began_ns
        )
        return wire.streamed_reply(head, reply)

    def _response(self, request: Request, answer: BackendReply) -> list[Part]:
        """Return a ModelInferResponse in pieces.

        Raises:
            BackendError: an output contradicts the configuration's reshape.
            InvalidRequestError: an output cannot be classified.
            InternalError: an output does not fit into its shared memory.
        """
        parts: list[Part] = [self._head, request.id_field]
        if answer.parameters:
            parts.append(wire.response_parameters(answer.parameters))
        by_slot = {tensor.slot: tensor for tensor in answer.tensors}
        layout = request.layout
        tensors = [by_slot[slot] for slot in layout.outputs if slot in by_slot]
        if layout.forms:
            outputs = [self._formed(one, layout.forms) for one in tensors]
            raws = [output.raw for output in outputs]
            parts += [
                wire.response_tensor(
                    self._signature.outputs[one.slot].name,
                    output.datatype.value,
                    output.shape,
                )
                for one, output in zip(tensors, outputs, strict=True)
            ]
        else:
            raws = [one.data for one in tensors]
            parts += [self._output(one) for one in tensors]
        for raw in raws:
            parts += (wire_format.length_prefix(_RAW_FIELD, len(raw)), raw)
        return parts

    def _formed(
        self, tensor: ReplyTensor, forms: Mapping[int, OutputForm]
    ) -> FormedOutput:
        """Return an output in the form that the client wants.

        Raises:
            ServingError: it cannot have that form.
        """
        output = FormedOutput(
            datatype=tensor.datatype, shape=self._shape(tensor), raw=tensor.data
        )
        form = forms.get(tensor.slot)
        if form is None:
            return output
        spec = self._signature.outputs[tensor.slot]
        is_batched = self._signature.is_batched
        return form_output(output, form, spec, is_batched=is_batched)

    def _output(self, tensor: ReplyTensor) -> bytes:
        """Return an entry of ModelInferResponse.outputs, remembered."""
        key = (tensor.slot, tensor.datatype.value, tensor.shape)
        found = self._outputs.get(key)
        if found is None:
            name = self._signature.outputs[tensor.slot].name
            found = wire.response_tensor(
                name, tensor.datatype.value, self._shape(tensor)
            )
            if len(self._outputs) >= _MAX_HEADS:
                self._outputs.clear()
            self._outputs[key] = found
        return found

    def _shape(self, tensor: ReplyTensor) -> tuple[int, ...]:
        """Return the client's shape of an output."""
        spec = self._signature.outputs[tensor.slot]
        if spec.reshape is None:
            return tensor.shape
        split = 1 if self._signature.is_batched else 0
        return tensor.shape[:split] + spec.to_client(tensor.shape[split:])


def _text_of(id_field: bytes) -> str:
    """Return the id in a field that begins with its tag and length."""
    if len(id_field) < 2:  # noqa: PLR2004 - tag and length
        return ""
    if id_field[1] < _SHORT:
        return id_field[2:].decode()
    _, start = wire_format.decode_varint(id_field, 1)
    return id_field[start:].decode()
