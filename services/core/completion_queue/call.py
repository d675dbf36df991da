"""Calls on the server's side: one slotted object each, which is its own tag."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias

from grpc._cython import cygrpc  # type: ignore[attr-defined]

from services.core.completion_queue.details import fitting

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
# grpcio's own objects, which have no types: passed on, not looked into.
NativeCall: TypeAlias = Any
NativeMetadata: TypeAlias = Any
NativeEvent: TypeAlias = Any
# Makes the object that serves a call, from the call, its method and metadata.
CallFactory: TypeAlias = Callable[[NativeCall, str, NativeMetadata], object]
Then: TypeAlias = Callable[[], None] | None

_ReceiveMessage: Final = cygrpc.ReceiveMessageOperation
_ReceiveClose: Final = cygrpc.ReceiveCloseOnServerOperation
_SendMessage: Final = cygrpc.SendMessageOperation
_SendStatus: Final = cygrpc.SendStatusFromServerOperation
_SendInitialMetadata: Final = cygrpc.SendInitialMetadataOperation
_OK: Final = cygrpc.StatusCode.ok
_INTERNAL: Final = cygrpc.StatusCode.internal
_UNAVAILABLE: Final = cygrpc.StatusCode.unavailable
_OUR_ERROR: Final = "internal error"
# A client of grpc's refuses more than 8 KiB of trailing metadata by chance and
# 16 KiB for sure: it would see another status than ours.
_LONGEST_DETAILS_BYTES: Final = 7_000
_NO_METADATA: Final = _SendInitialMetadata(None, 0)
_STATUS_OK: Final = _SendStatus(None, _OK, b"", 0)
_CLOSE_UNSEEN: Final = _ReceiveClose(0)


class UnaryCall:
    """One unary call: its request comes once, its answer goes once.

    Subclasses say what to do in ``received`` and, if they wait, ``cancelled``.
    ``answer`` and ``fail`` may be called from any thread, once in all; what
    comes after the first, or after the client left, is dropped.

    Attributes:
        longest_details: Bytes of an error's text on the wire; what is more is cut.
        watches_at_once: Whether the client's leaving is looked for from the start;
            else only after ``watch``.
    """

    __slots__ = ("__weakref__", "_call", "_is_watched", "metadata", "open")

    longest_details: ClassVar[int] = _LONGEST_DETAILS_BYTES
    watches_at_once: ClassVar[bool] = True

    def __init__(
        self, call: NativeCall, _method: str, metadata: NativeMetadata
    ) -> None:
        """Take over a call that has just arrived."""
        self._call = call
        self.metadata = metadata
        self.open = True
        self._is_watched = False
        call.start_server_batch((_ReceiveMessage(0),), self)
        if self.watches_at_once:
            self.watch()

    def received(self, message: bytes) -> None:
        """Handle the request; on the loop's thread."""
        raise NotImplementedError

    def cancelled(self) -> None:
        """The client left, or its deadline passed, before the answer."""

    def watch(self) -> None:
        """Begin to look for the client's leaving; on the loop's thread."""
        if not self._is_watched:
            self._is_watched = True
            self._call.start_server_batch((_ReceiveClose(0),), self._closed)

    def answer(self, message: bytes, metadata: Metadata | None = None) -> None:
        """Send the response and end the call."""
        if self.open:
            self.open = False
            first = _SendInitialMetadata(metadata, 0) if metadata else _NO_METADATA
            send = _SendMessage(message, 0)
            # Hot, so not by ``_end``.
            self._call.start_server_batch(
                (first, send, _STATUS_OK)
                if self._is_watched
                else (first, send, _STATUS_OK, _CLOSE_UNSEEN),
                None,
            )

    def fail(self, code: int, details: str, metadata: Metadata | None = None) -> None:
        """End the call with a status other than OK, and ``metadata`` with it."""
        if self.open:
            self.open = False
            text = fitting(details, self.longest_details)
            status = _SendStatus(metadata, code, text, 0)
            self._end((_NO_METADATA, status))

    def _end(self, operations: tuple[Any, ...]) -> None:
        # C-core wants the end of every call received, be it with its last batch.
        if not self._is_watched:
            operations = (*operations, _CLOSE_UNSEEN)
        self._call.start_server_batch(operations, None)

    def __call__(self, event: NativeEvent) -> None:
        """Take the completed receive; an error in ``received`` ends the call."""
        message = event.batch_operations[0].message()
        if message is None:
            self.fail(_INTERNAL, "the call carried no request")
            return
        try:
            self.received(message)
        except Exception:
            self.fail(_INTERNAL, _OUR_ERROR)
            raise

    def _closed(self, event: NativeEvent) -> None:
        if self.open and event.batch_operations[0].cancelled():
            self.open = False
            self.cancelled()


class UnimplementedCall(UnaryCall):
    """A method nobody serves."""

    __slots__ = ("_method",)

    def __init__(self, call: NativeCall, method: str, metadata: NativeMetadata) -> None:
        self._method = method
        super().__init__(call, method, metadata)

    def received(self, message: bytes) -> None:
        """Refuse the call."""
        del message
        self.fail(
            cygrpc.StatusCode.unimplemented, f"method {self._method} is not served"
        )

    def __call__(self, event: NativeEvent) -> None:
        """Refuse the call even if it carries no request."""
        del event
        self.received(b"")


class StreamCall:
    """One streaming call. A message is received only when ``read`` asked for it.

    Everything here is called on the loop's thread; the hooks too.

    Attributes:
        longest_details: As in ``UnaryCall``.
    """

    __slots__ = (
        "__weakref__",
        "_begun",
        "_call",
        "_sending",
        "_unsent",
        "metadata",
        "open",
    )

    longest_details: ClassVar[int] = _LONGEST_DETAILS_BYTES

    def __init__(
        self, call: NativeCall, _method: str, metadata: NativeMetadata
    ) -> None:
        """Take over a call that has just arrived."""
        self._call = call
        self.metadata = metadata
        self.open = True
        self._begun = False
        self._sending = False
        # Operations, and what is called when they are done.
        self._unsent: deque[tuple[tuple[Any, ...], Then]] = deque()
        call.start_server_batch((_ReceiveClose(0),), self._closed)

    def received(self, message: bytes) -> None:
        """Handle the message that ``read`` asked for."""
        raise NotImplementedError

    def half_closed(self) -> None:
        """Handle the end of the client's messages (or of the client)."""

    def cancelled(self) -> None:
        """Handle the loss of the client, or an error of ours, before ``finish``."""

    def sent_all(self) -> None:
        """Handle that everything sent so far is on its way."""

    def hang_up(self) -> None:
        """End the call, behind what it has sent: the server stops."""
        self.finish(_UNAVAILABLE, "the server is shutting down")

    @property
    def unsent(self) -> int:
        """How much waits behind a client that is slow to read."""
        return len(self._unsent)

    def read(self) -> None:
        """Ask for the next message; not again before it came."""
        self._call.start_server_batch((_ReceiveMessage(0),), self)

    def begin(self, metadata: Metadata | None = None) -> None:
        """Send the initial metadata; once, and before any message."""
        self._begun = True
        self._post((_SendInitialMetadata(metadata, 0),))

    def send(self, message: bytes, then: Then = None) -> None:
        """Send ``message`` after those before it.

        Args:
            message: Whole.
            then: Called when it is on its way to a client that is still there.
        """
        if not self._begun:
            self.begin()
        self._post((_SendMessage(message, 0),), then)

    def finish(
        self, code: int = _OK, details: str = "", metadata: Metadata | None = None
    ) -> None:
        """End the call once everything is sent; ``metadata`` goes with the status."""
        if not self.open:
            return
        text = fitting(details, self.longest_details)
        status = _SendStatus(metadata, code, text, 0)
        self._post((status,) if self._begun else (_NO_METADATA, status))
        self.open = False

    def _post(self, operations: tuple[Any, ...], then: Then = None) -> None:
        if not self.open:
            return
        if self._sending:
            self._unsent.append((operations, then))
        else:
            self._sending = True
            self._start(operations, then)

    def _start(self, operations: tuple[Any, ...], then: Then) -> None:
        sent = self._sent if then is None else partial(self._sent_one, then)
        self._call.start_server_batch(operations, sent)

    def _sent_one(self, then: Callable[[], None], event: NativeEvent) -> None:
        self._sent(event)
        if event.success:
            then()

    def _sent(self, event: NativeEvent) -> None:
        if self._unsent and event.success:
            self._start(*self._unsent.popleft())
        else:
            self._sending = False
            if event.success:
                self.sent_all()

    def __call__(self, event: NativeEvent) -> None:
        """Take the completed receive; an error in its hook ends the call."""
        message = event.batch_operations[0].message()
        try:
            if message is None:
                self.half_closed()
            else:
                self.received(message)
        except Exception:
            if self.open:
                self.finish(_INTERNAL, _OUR_ERROR)
                self.cancelled()
            raise

    def _closed(self, event: NativeEvent) -> None:
        if self.open and event.batch_operations[0].cancelled():
            self.open = False
            self.cancelled()


def metadata_values(metadata: NativeMetadata) -> Mapping[str, str | bytes]:
    """Return a call's metadata by key; of repeated keys the last counts."""
    return {item.key: item.value for item in metadata}
