"""Messages between a worker and a model's process: a header, bytes, descriptors.

A frame is a header (length of the body, kind, number of descriptors) and a body.
The descriptors come with it as SCM_RIGHTS. The bodies are in ``messages``.
"""

import contextlib
import enum
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct("<IHH")
_CHUNK_BYTES: Final = 1 << 16
_MAX_DESCRIPTORS: Final = 16


class Kind(enum.IntEnum):
    """What a frame is about."""

    # Worker to model and back, in turns.
    INITIALIZE = 1
    COMPLETE_CONFIG = 2
    EXECUTE = 3
    FINALIZE = 4
    DONE = 6
    # The same, and the memory of the inputs is still in use by the model.
    DONE_AND_KEPT = 7
    FAILED = 8
    # Model to worker, at any time.
    LOG = 16
    STREAMED = 17
    CALL = 18
    CANCEL_CALL = 19
    METRICS = 20
    READINESS = 21
    # All that was streamed in a batch has been sent.
    STREAMED_ALL = 22
    # Worker to model, at any time.
    CANCEL = 32
    ANSWER = 33
    CHECK_READINESS = 34
    PAUSE = 35
    RESUME = 36


class Frame(NamedTuple):
    """One message.

    Attributes:
        kind: What the body is.
        body: The bytes themselves.
        descriptors: Open files that now belong to the receiver.
    """

    kind: int
    body: bytes
    descriptors: tuple[int, ...]


class FrameSocket:
    """One end of a stream of frames.

    Any thread may send; one at a time receives.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Take over a connected Unix stream socket."""
        self._socket = connection
        self._sending = threading.Lock()
        self._received = b""
        self._descriptors: deque[int] = deque()

    def send(self, kind: int, body: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one frame; blocks while the other side does not read.

        Raises:
            OSError: the other side is gone.
        """
        message = _HEADER.pack(len(body), kind, len(descriptors)) + body
        with self._sending:
            if descriptors:
                sent = socket.send_fds(self._socket, [message], list(descriptors))
            else:
                sent = self._socket.send(message)
            if sent < len(message):
                self._socket.sendall(memoryview(message)[sent:])

    def receive(self) -> Frame:
        """Wait for the next frame.

        Raises:
            EOFError: the other side is gone.
        """
        buffer = self._received
        while len(buffer) < _HEADER.size:
            buffer += self._more()
        length, kind, count = _HEADER.unpack_from(buffer)
        end = _HEADER.size + length
        if len(buffer) < end:
            chunks, size = [buffer], len(buffer)
            while size < end:
                chunks.append(self._more())
                size += len(chunks[-1])
            buffer = b"".join(chunks)
        self._received = buffer[end:]
        descriptors = tuple([self._descriptors.popleft() for _ in range(count)])
        return Frame(kind, buffer[_HEADER.size : end], descriptors)

    def hang_up(self) -> None:
        """End the connection, from any thread.

        What was sent before is still received; then both sides' ``receive`` raise.
        """
        with contextlib.suppress(OSError):  # the other side was first
            self._socket.shutdown(socket.SHUT_RDWR)

    def _more(self) -> bytes:
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._socket, _CHUNK_BYTES, _MAX_DESCRIPTORS
            )
        except OSError as error:
            raise EOFError(str(error)) from error
        self._descriptors.extend(descriptors)
        if not data:
            raise EOFError("the other side is gone")
        return data
