"""One batch for a backend that takes its requests one by one."""

from collections.abc import Sequence
from typing import Final

import structlog

from services.core.clock import Clock
from services.core.errors import BackendError, ExhaustedError, ServingError
from services.worker import wire
from services.worker.backend import (
    BackendAnswer,
    BackendCall,
    BackendFailure,
    RequestBackend,
)
from services.worker.exhaustion import is_exhaustion
from services.worker.reply_encoder import Part, encode_error
from services.worker.request_codec import AnswerEncoder, RequestDecoder, timing
from services.worker.request_reader import Request
from services.worker.signature import Signature
from services.worker.watchdog import HungError

# google.rpc.Code
_INTERNAL: Final = 13
_RESOURCE_EXHAUSTED: Final = 8
# Between the message and the traceback of a Python model's error.
_TRACEBACK: Final = "\n\nAt:"

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
        self._decoder = RequestDecoder(signature)
        self._encoder = AnswerEncoder(signature)

    def run(self, message: bytes) -> bytes:
        """Return the BatchResponse to a BatchRequest.

        Whatever goes wrong inside becomes the error of the requests it concerns.

        Raises:
            WireFormatError: the message is no BatchRequest.
            HungError: the execution was ended; nobody is answered.
        """
        started_ns = self._now_ns()
        requests = self._decoder.decode(message)
        calls = self._decoder.calls(requests)
        decoded_ns = self._now_ns()
        answers = iter(self._execute(calls) if calls else ())
        executed_ns = self._now_ns()
        parts: list[Part] = []
        for one in requests:
            if isinstance(one, Request):
                parts += self._encoder.reply(one, next(answers))
            else:
                parts.append(encode_error(one))
        spent = timing(
            decoded_ns - started_ns,
            executed_ns - decoded_ns,
            self._now_ns() - executed_ns,
        )
        return b"".join((spent, *parts))

    def _execute(self, calls: list[BackendCall]) -> Sequence[BackendAnswer]:
        try:
            answers = self._backend.execute_requests(calls)
        except HungError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: it becomes a reply
            if is_exhaustion(error):
                error = ExhaustedError(str(error) or "out of memory")
            return [failure_of(error, self._signature)] * len(calls)
        if len(answers) != len(calls):
            text = f"{len(calls)} requests were answered by {len(answers)} replies"
            return [BackendFailure(_INTERNAL, text)] * len(calls)
        return [_as_exhaustion(one) for one in answers]


def _as_exhaustion(answer: BackendAnswer) -> BackendAnswer:
    """Return ``answer``, as RESOURCE_EXHAUSTED if fewer rows might have gone well.

    A model's own answer to a request says nothing of its execution.
    """
    if not isinstance(answer, BackendFailure) or answer.is_answer:
        return answer
    # What follows the message names files, which may be called anything.
    message = answer.text.partition(_TRACEBACK)[0]
    if not is_exhaustion(BackendError(message)):
        return answer
    return answer._replace(code=_RESOURCE_EXHAUSTED)


def failure_of(error: Exception, signature: Signature) -> BackendFailure:
    """Return what the clients of a batch are told; what is a bug is logged."""
    if not isinstance(error, ServingError):
        _log.error(
            "a batch failed unexpectedly",
            model=signature.model_name,
            version=signature.model_version,
            exc_info=error,
        )
    return BackendFailure(*wire.error_status(error))
