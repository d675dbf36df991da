"""One batch for a backend that takes its requests one by one."""

import struct
from typing import Final

import structlog

from services.core import wire_format
from services.core.clock import Clock
from services.core.errors import ServingError
from services.worker import wire
from services.worker.backend import (
    BackendAnswer,
    BackendCall,
    BackendFailure,
    ReplyTensor,
    RequestBackend,
    RequestTensor,
)
from services.worker.batch_spans import request_spans
from services.worker.reply_encoder import Part, enclose, encode_error
from services.worker.request_reader import Request, RequestReader
from services.worker.signature import Signature

# BatchResponse.timing: tag and length, then three fixed64 behind their tags.
_TIMING: Final = struct.Struct("<2sBQBQBQ")
_TIMING_PREFIX: Final = b"\x0a\x1b"
_RAW_FIELD: Final = 6
_INTERNAL: Final = 13  # google.rpc.Code
_SHORT: Final = 128
_MAX_HEADS: Final = 1024

_log = structlog.get_logger(__name__)


class RequestExecution:
    """Runs batches on one backend, one at a time.

    Its owner calls it from one thread at a time.
    """

    def __init__(
        self, signature: Signature, backend: RequestBackend, clock: Clock
    ) -> None:
        """Begin with nothing learned."""
        self._signature = signature
        self._backend = backend
        self._now_ns = clock.now_ns
        self._reader = RequestReader(
            signature, wire.parse_request, wire.canonical_request
        )
        self._encoder = _ReplyEncoder(signature)

    def run(self, message: bytes) -> bytes:
        """Return the BatchResponse to a BatchRequest.

        Whatever goes wrong inside becomes the error of the requests it concerns.

        Raises:
            WireFormatError: the message is no BatchRequest.
        """
        started_ns = self._now_ns()
        requests = [
            self._read(message, start, end) for start, end in request_spans(message)
        ]
        view = memoryview(message)
        calls = [
            self._call(one, view if one.source is message else memoryview(one.source))
            for one in requests
            if isinstance(one, Request)
        ]
        decoded_ns = self._now_ns()
        answers = iter(self._execute(calls) if calls else ())
        executed_ns = self._now_ns()
        parts: list[Part] = []
        for one in requests:
            if isinstance(one, Request):
                parts += self._encoder.encode(one, next(answers))
            else:
                parts.append(encode_error(one))
        done_ns = self._now_ns()
        timing = _TIMING.pack(
            _TIMING_PREFIX,
            0x09,
            decoded_ns - started_ns,
            0x11,
            executed_ns - decoded_ns,
            0x19,
            done_ns - executed_ns,
        )
        return b"".join((timing, *parts))

    def _read(self, message: bytes, start: int, end: int) -> Request | ServingError:
        try:
            return self._reader.read(message, start, end)
        except ServingError as error:
            return error

    def _call(self, request: Request, view: memoryview) -> BackendCall:
        layout = request.layout
        rows = (layout.rows,) if self._signature.is_batched else ()
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

    def _execute(self, calls: list[BackendCall]) -> list[BackendAnswer]:
        try:
            answers = list(self._backend.execute_requests(calls))
        except Exception as error:  # noqa: BLE001 - the boundary: it becomes a reply
            if not isinstance(error, ServingError):
                _log.error(
                    "a batch failed unexpectedly",
                    model=self._signature.model_name,
                    version=self._signature.model_version,
                    exc_info=error,
                )
            code, text = wire.error_status(error)
            return [BackendFailure(code, text)] * len(calls)
        if len(answers) != len(calls):
            text = f"{len(calls)} requests were answered by {len(answers)} replies"
            return [BackendFailure(_INTERNAL, text)] * len(calls)
        return answers


class _ReplyEncoder:
    """Encodes answers as entries of BatchResponse.reply."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._head = wire.response_head(signature.model_name, signature.model_version)
        self._outputs: dict[tuple[int, str, tuple[int, ...]], bytes] = {}

    def encode(self, request: Request, answer: BackendAnswer) -> list[Part]:
        """Return one reply in pieces, ready to be joined."""
        if isinstance(answer, BackendFailure):
            return [wire.error_reply(answer.code, answer.text)]
        parts: list[Part] = [self._head, request.id_field]
        if answer.parameters:
            parts.append(wire.response_parameters(answer.parameters))
        by_slot = {tensor.slot: tensor for tensor in answer.tensors}
        tensors = [by_slot[slot] for slot in request.layout.outputs if slot in by_slot]
        try:
            parts += [self._output(tensor) for tensor in tensors]
        except ServingError as error:
            return [encode_error(error)]
        for tensor in tensors:
            parts.append(wire_format.length_prefix(_RAW_FIELD, len(tensor.data)))
            parts.append(tensor.data)
        return [enclose(sum(map(len, parts))), *parts]

    def _output(self, tensor: ReplyTensor) -> bytes:
        key = (tensor.slot, tensor.datatype.value, tensor.shape)
        found = self._outputs.get(key)
        if found is None:
            spec = self._signature.outputs[tensor.slot]
            shape = tensor.shape
            if spec.reshape is not None:
                split = 1 if self._signature.is_batched else 0
                shape = shape[:split] + spec.to_client(shape[split:])
            found = wire.response_tensor(spec.name, tensor.datatype.value, shape)
            if len(self._outputs) >= _MAX_HEADS:
                self._outputs.clear()
            self._outputs[key] = found
        return found


def _text_of(id_field: bytes) -> str:
    """Return the id in a field that begins with its tag and length."""
    if len(id_field) < 2:  # noqa: PLR2004 - tag and length
        return ""
    if id_field[1] < _SHORT:
        return id_field[2:].decode()
    _, start = wire_format.decode_varint(id_field, 1)
    return id_field[start:].decode()
