"""A bidirectional stream on the client's side, driven by the thread that reads it."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from grpc._cython import cygrpc  # type: ignore[attr-defined]

from services.core.completion_queue.call import Metadata, Then

Options: TypeAlias = Sequence[tuple[str, int | str]]

UNLIMITED_MESSAGES: Final[Options] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


class ClientStream:
    """The client's end of a bidirectional stream, with a queue of its own.

    One thread opens it and receives; everything else may come from any.
    """

    def __init__(self, target: str, method: str, metadata: Metadata = ()) -> None:
        """Dial ``target`` and open ``/package.Service/Method``; never blocks."""
        # A connection of its own: streams shared one, and with it the library's
        # growing backoff, which outlives the stream that failed.
        own_connection = ("grpc.use_local_subchannel_pool", 1)
        options = (*UNLIMITED_MESSAGES, ("grpc.enable_retries", 0), own_connection)
        self._channel = cygrpc.Channel(target.encode(), options, None)
        start = (
            ((cygrpc.SendInitialMetadataOperation(tuple(metadata), 0),), self._sent),
            ((cygrpc.ReceiveInitialMetadataOperation(0),), None),
            ((cygrpc.ReceiveStatusOnClientOperation(0),), self._ended),
        )
        self._call = self._channel.segregated_call(
            0, method.encode(), None, None, None, None, start, None
        )
        self._lock = threading.Lock()
        self._finishing = False
        self._sending = True
        self._unsent: deque[tuple[bytes, Then]] = deque()
        self._received: bytes | None = None
        self._over = False
        self._marker = object()
        self.status: tuple[int, str] | None = None
        self._call.operate((cygrpc.ReceiveMessageOperation(0),), self._receive)

    def receive(self) -> bytes | None:
        """Wait for the next message; None when the stream has ended.

        ``status`` then tells the code and the text it ended with.
        """
        next_event = self._call.next_event
        while not self._over:
            event = next_event()
            if event.tag is not None:
                event.tag(event)
            # It keeps its message alive, and the next may be long in coming.
            event = None
            if self._received is not None:
                message, self._received = self._received, None
                return message
        while self.status is None:
            event = next_event()
            if event.tag is not None:
                event.tag(event)
        return None

    def arrived(self) -> list[bytes]:
        """Return the messages that are here, without waiting for more.

        For a loop that has other work: it calls this now and then, always from
        one thread, in place of ``receive``. ``status`` is set at the end.
        """
        messages: list[bytes] = []
        if self.status is not None:
            return messages
        # An empty batch completes at once: what comes before it was here already.
        self._call.operate((), self._marker)
        while (event := self._call.next_event()).tag is not self._marker:
            if event.tag is not None:
                event.tag(event)
            if self._received is not None:
                messages.append(self._received)
                self._received = None
        return messages

    def send(self, message: bytes, then: Then = None) -> None:
        """Send ``message`` after those before it; never blocks.

        Args:
            message: Whole.
            then: Called by the thread that receives when the message is on its way.
        """
        with self._lock:
            if self._sending:
                self._unsent.append((message, then))
                return
            self._sending = True
            self._start(message, then)

    def finish(self) -> None:
        """Say that nothing more will be sent; the other end then ends the stream.

        Once. C-core puts the end behind a message that is still on its way; it
        waits here behind those that are queued.
        """
        with self._lock:
            if self._unsent:
                self._finishing = True
                return
            self._call.operate((cygrpc.SendCloseFromClientOperation(0),), None)

    def cancel(self) -> None:
        """End the stream from this side; a blocked ``receive`` returns None."""
        self._call.cancel(cygrpc.StatusCode.cancelled, "the client ended the stream")

    def close(self) -> None:
        """Release the connection of a stream that has ended."""
        self._channel.close(cygrpc.StatusCode.cancelled, "closed")

    def _receive(self, event: Any) -> None:
        self._received = event.batch_operations[0].message()
        if self._received is None:
            self._over = True
        else:
            self._call.operate((cygrpc.ReceiveMessageOperation(0),), self._receive)

    def _start(self, message: bytes, then: Then) -> None:
        sent = self._sent if then is None else partial(self._sent_one, then)
        self._call.operate((cygrpc.SendMessageOperation(message, 0),), sent)

    def _sent_one(self, then: Callable[[], None], event: Any) -> None:
        self._sent(event)
        if event.success:
            then()

    def _sent(self, event: Any) -> None:
        with self._lock:
            if not self._unsent or not event.success:
                self._sending = False
                return
            self._start(*self._unsent.popleft())
            if self._finishing and not self._unsent:
                self._call.operate((cygrpc.SendCloseFromClientOperation(0),), None)

    def _ended(self, event: Any) -> None:
        operation = event.batch_operations[0]
        details = operation.details()
        self.status = (operation.code(), details or "")
        self._over = True
