"""The way back to the client for models that answer when they like."""

import threading
from collections.abc import Callable
from typing import Final, TypeAlias

from services.worker.python_backend.model import pacing
from services.worker.python_backend.model.errors import TritonModelException
from services.worker.python_backend.model.response import InferenceResponse
from services.worker.python_backend.model.room import Room

TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1

Deliver: TypeAlias = Callable[[InferenceResponse | None, bool], None]


class ResponseStream:
    """The answers to one request, whoever sends them.

    Attributes:
        is_cancelled: Whether nobody waits for them any longer.
        is_taken: Whether the model has asked for its sender.
        is_closed: Whether the final flag has been sent.
        is_rescheduled: Whether the model wants the request back.
        abandoned: Called, at any moment of any thread, when the model cannot send
            any longer and has not sent the final flag; must not wait for a lock.
    """

    __slots__ = (
        "_deliver",
        "_lock",
        "_room",
        "abandoned",
        "is_cancelled",
        "is_closed",
        "is_rescheduled",
        "is_taken",
    )

    def __init__(
        self,
        deliver: Deliver,
        abandoned: Callable[[], None],
        room: Room | None = None,
    ) -> None:
        """Prepare to answer.

        Args:
            deliver: Given an answer, if any, and whether it is the last.
            abandoned: See above.
            room: Whether the reader has any; None: it always has.
        """
        self._deliver = deliver
        self._lock = threading.Lock()
        self._room = room
        self.abandoned = abandoned
        self.is_cancelled = False
        self.is_taken = False
        self.is_closed = False
        self.is_rescheduled = False

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
            if self.is_closed and self._room is not None:
                self._room.end()
            self._deliver(response, self.is_closed)

    def cancel(self) -> None:
        """Note that nobody waits for the answers any longer."""
        self.is_cancelled = True
        if self._room is not None:
            self._room.end()

    def pause(self) -> None:
        """Note that the reader is slower than the answers come."""
        if self._room is not None:
            self._room.take_away()

    def resume(self) -> None:
        """Note that the reader has caught up."""
        if self._room is not None:
            self._room.give()

    def wait_for_room(self) -> None:
        """Return when the reader has room for another answer.

        In an event loop at once: the task that runs waits at its next ``await``.
        """
        room = self._room
        if room is None:
            return
        if pacing.is_in_loop():
            pacing.owe(room)
        else:
            room.wait()

    def close(self) -> bool:
        """Let nothing more be sent; return whether it was still open."""
        with self._lock:
            was_open, self.is_closed = not self.is_closed, True
        if self._room is not None:
            self._room.end()
        return was_open


class InferenceResponseSender:
    """Sends the answers to one request, from any thread.

    Only the model holds it: when the last reference is gone before the final flag was
    sent, as with a thread that has died, nobody can answer any more, and the client
    is told so.
    """

    __slots__ = ("_stream",)

    def __init__(self, stream: ResponseStream) -> None:
        """Send through ``stream``."""
        self._stream = stream

    def __del__(self) -> None:
        """Give up what has not been answered to the end."""
        if not (self._stream.is_closed or self._stream.is_rescheduled):
            self._stream.abandoned()

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send an answer, or only say that there will be no more.

        While the client reads more slowly than it is answered this waits, unless it
        is the last answer or the client has left.

        Raises:
            TritonModelException: the final flag was sent before, or the call says
                nothing.
        """
        if not flags:
            self._stream.wait_for_room()
        self._stream.send(response, flags)

    def is_cancelled(self) -> bool:
        """Return whether nobody waits for the answer any longer."""
        return self._stream.is_cancelled

    def take(self) -> None:
        """Note that the model has asked for it."""
        self._stream.is_taken = True

    def reschedule(self, *, again: bool) -> None:
        """Note whether the model wants the request back when ``execute`` returns."""
        self._stream.is_rescheduled = again
