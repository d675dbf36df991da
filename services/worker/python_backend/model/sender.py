"""The way back to the client for models that answer when they like."""

import threading
from collections.abc import Callable
from typing import Final, TypeAlias

from services.worker.python_backend.model.errors import TritonModelException
from services.worker.python_backend.model.response import InferenceResponse

TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1

Deliver: TypeAlias = Callable[[InferenceResponse | None, bool], None]


class InferenceResponseSender:
    """Sends the answers to one request, from any thread.

    Attributes:
        is_taken: Whether the model has asked for it.
        is_closed: Whether the final flag has been sent.
    """

    __slots__ = ("_cancelled", "_deliver", "_lock", "is_closed", "is_taken")

    def __init__(self, deliver: Deliver) -> None:
        """Prepare to answer.

        Args:
            deliver: Given an answer, if any, and whether it is the last.
        """
        self._deliver = deliver
        self._cancelled = False
        self._lock = threading.Lock()
        self.is_taken = False
        self.is_closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send an answer, or only say that there will be no more.

        Raises:
            TritonModelException: the final flag was sent before, or the call says
                nothing.
        """
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException(
                f"Unable to send response. Unsupported flag: {flags}"
            )
        if response is None and not flags:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is"
                " set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TritonModelException(
                f"expected an InferenceResponse, not {type(response).__name__}"
            )
        with self._lock:
            if self.is_closed:
                raise TritonModelException(
                    "Unable to send response. Response sender has been closed."
                )
            self.is_closed = bool(flags)
            self._deliver(response, self.is_closed)

    def is_cancelled(self) -> bool:
        """Return whether nobody waits for the answer any longer."""
        return self._cancelled

    def cancel(self) -> None:
        """Let the model know that nobody waits any longer."""
        self._cancelled = True

    def close(self) -> bool:
        """Let nothing more be sent; return whether it was still open."""
        with self._lock:
            was_open, self.is_closed = not self.is_closed, True
            return was_open
