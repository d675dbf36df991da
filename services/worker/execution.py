"""One batch from its bytes to the bytes of its answer."""

import struct
from typing import Final

import structlog

from services.core.clock import Clock
from services.core.errors import ExhaustedError, ServingError
from services.worker import wire
from services.worker.backend import Backend
from services.worker.batch import Batch, Refusal
from services.worker.batch_decoder import BatchDecoder
from services.worker.exhaustion import is_exhaustion
from services.worker.gather import Allocate, pageable
from services.worker.reply_encoder import Part, ReplyEncoder, encode_error
from services.worker.request_reader import RequestReader
from services.worker.scatter import scatter
from services.worker.signature import Signature

# BatchResponse.timing: tag and length, then three fixed64 behind their tags.
_TIMING: Final = struct.Struct("<2sBQBQBQ")
_TIMING_PREFIX: Final = b"\x0a\x1b"

_log = structlog.get_logger(__name__)


class Execution:
    """Runs batches on one backend, one at a time.

    Its owner calls it from one thread at a time.
    """

    def __init__(
        self,
        signature: Signature,
        backend: Backend,
        clock: Clock,
        allocate: Allocate = pageable,
    ) -> None:
        """Prepare the buffers and templates of one instance.

        Args:
            signature: Of the model.
            backend: Executes.
            clock: For the batches' timing.
            allocate: Returns the memory in which inputs are gathered.
        """
        self._signature = signature
        self._backend = backend
        self._now_ns = clock.now_ns
        reader = RequestReader(signature, wire.parse_request, wire.canonical_request)
        self._decoder = BatchDecoder(signature, reader, allocate)
        self._encoder = ReplyEncoder(signature)
        self._names = tuple(spec.name for spec in signature.outputs)

    def run(self, message: bytes) -> bytes:
        """Return the BatchResponse to a BatchRequest.

        Whatever goes wrong inside becomes the error of the requests it
        concerns. The time of the last copy, into the returned bytes, is not
        part of ``compute_output_ns``: it happens after the clock was read.

        Raises:
            WireFormatError: the message is no BatchRequest.
        """
        started_ns = self._now_ns()
        batch = self._decoder.decode(message)
        decoded_ns = executed_ns = self._now_ns()
        try:
            if batch.outputs:
                names = [self._names[index] for index in batch.outputs]
                tensors = self._backend.execute(batch.inputs, names)
                executed_ns = self._now_ns()
            else:
                tensors = {}
            blocks = scatter(self._signature, batch.outputs, tensors, batch.rows)
            parts = self._encoder.encode(batch, blocks)
        except Exception as error:  # noqa: BLE001 - the boundary: it becomes a reply
            if executed_ns == decoded_ns:  # the backend raised
                executed_ns = self._now_ns()
            parts = self._fail(batch, error)
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

    def _fail(self, batch: Batch, error: Exception) -> list[Part]:
        """Answer every request with ``error``, refused ones with their own."""
        if is_exhaustion(error):
            is_ours = isinstance(error, MemoryError)
            error = ExhaustedError(f"out of memory: {error}" if is_ours else str(error))
        if not isinstance(error, ServingError):
            _log.error(
                "a batch failed unexpectedly",
                model=self._signature.model_name,
                version=self._signature.model_version,
                exc_info=error,
            )
        everyone = encode_error(error)
        return [
            encode_error(outcome.error) if isinstance(outcome, Refusal) else everyone
            for outcome in batch.outcomes
        ]
