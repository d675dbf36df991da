"""grpcio's C-core completion queue, driven directly: the only private API we use.

``grpc._cython.cygrpc`` lies under both of grpcio's public APIs. Driven from one
thread it serves a unary call in 47 us of CPU where ``grpc.aio`` takes 413
(`simple`, concurrency 32): no task, no future and no thread hop for a call, and
messages stay bytes. It is private, so grpcio is pinned exactly and everything we
touch of it stands in this module, guarded by tests/unit/core/test_completion_queue.

How it works: every operation on a call is posted with a *tag*; ``poll`` hands
the tag back when the operation is complete. Our tags are callables that take the
event, so the loop is ``poll().tag(event)``. A tag of None is a completion that
nobody waits for.

Rules of C-core that bite: one outstanding send and one outstanding receive for a
call, hence the out-queues; its deadlines have a grain of 1 ms, hence the short
sleeps before a near timer; an *empty* batch on any retained call completes at
once, which is how another thread wakes the loop; the end of a call is seen while
it is being served only if a receive-close batch of its own was posted.
"""

import contextlib
import heapq
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import structlog
from grpc._cython import cygrpc

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
Options: TypeAlias = Sequence[tuple[str, int | str]]
CallFactory: TypeAlias = Callable[[Any, str, Any], Callable[[Any], None]]

UNLIMITED_MESSAGES: Final[Options] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)

_log = structlog.get_logger(__name__)

_POSTED_CALLS: Final = 128
_EVENTS_BEFORE_FORCED_DRAIN: Final = 64
# Below this a timer is met by polling: C-core would be up to 1 ms late.
_POLLED_WAIT_NS: Final = 2_000_000
_POLL_SLEEP_NS: Final = 50_000

_ReceiveMessage: Final = cygrpc.ReceiveMessageOperation
_ReceiveClose: Final = cygrpc.ReceiveCloseOnServerOperation
_SendMessage: Final = cygrpc.SendMessageOperation
_SendStatus: Final = cygrpc.SendStatusFromServerOperation
_SendInitialMetadata: Final = cygrpc.SendInitialMetadataOperation
_OK: Final = cygrpc.StatusCode.ok
_NO_METADATA: Final = _SendInitialMetadata(None, 0)
_STATUS_OK: Final = _SendStatus(None, _OK, b"", 0)


class Timer:
    """A call promised for a time; ``cancel`` takes it back."""

    __slots__ = ("callback", "when_ns")

    def __init__(self, when_ns: int, callback: Callable[[], None]) -> None:
        """Promise ``callback`` for monotonic ``when_ns``."""
        self.when_ns = when_ns
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Forget the callback."""
        self.callback = None

    def __lt__(self, other: "Timer") -> bool:
        """Order by time, for the heap."""
        return self.when_ns < other.when_ns


class Reactor:
    """One thread that serves one completion queue."""

    def __init__(self) -> None:
        """Create the queue and the call that other threads wake it with."""
        self.queue = cygrpc.CompletionQueue()
        self._timers: list[Timer] = []
        self._when_drained: dict[Callable[[], None], None] = {}
        self._running = True
        self._waker = _retained_call(self.queue)

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the loop's thread; safe from any thread or signal."""
        self._waker.start_server_batch((), lambda _: callback())

    def call_when_drained(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once, when what has already arrived is handled.

        Asking again before it ran changes nothing. Under a stream of events
        that never pauses it runs after 64 of them.
        """
        self._when_drained[callback] = None

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` at monotonic ``when_ns``, at most 0.1 ms late if idle."""
        timer = Timer(when_ns, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def stop(self) -> None:
        """Leave ``run`` after the present event; on the loop's thread."""
        self._running = False

    def run(self) -> None:
        """Serve events until ``stop``. An error in one is logged, never fatal."""
        while self._running:
            try:
                self._serve()
            except Exception:
                _log.exception("a completion failed")

    def _serve(self) -> None:
        poll = self.queue.poll
        timeout = cygrpc.CompletionType.queue_timeout
        since_drain = 0
        while self._running:
            if self._when_drained:
                event = poll(0)
                since_drain += 1
            elif self._timers:
                event = self._poll_until_timer(poll)
            else:
                event = poll()
            tag = event.tag
            if tag is not None:
                tag(event)
            if (
                tag is None and event.completion_type == timeout
            ) or since_drain > _EVENTS_BEFORE_FORCED_DRAIN:
                since_drain = 0
                self._run_due()
            # The event keeps its call and its message alive: let them go now.
            event = tag = None

    def _poll_until_timer(self, poll: Callable[..., Any]) -> Any:
        wait_ns = self._timers[0].when_ns - time.monotonic_ns()
        if wait_ns > _POLLED_WAIT_NS:
            return poll(time.time() + wait_ns / 1e9 - 0.001)
        event = poll(0)
        if (
            wait_ns > 0
            and event.completion_type == cygrpc.CompletionType.queue_timeout
        ):
            time.sleep(min(wait_ns, _POLL_SLEEP_NS) / 1e9)
        return event

    def _run_due(self) -> None:
        timers = self._timers
        if timers:
            now_ns = time.monotonic_ns()
            while timers and timers[0].when_ns <= now_ns:
                callback = heapq.heappop(timers).callback
                if callback is not None:
                    callback()
        if self._when_drained:
            callbacks = tuple(self._when_drained)
            self._when_drained.clear()
            for callback in callbacks:
                callback()


class Server:
    """One gRPC server on a reactor's queue: its addresses and its methods."""

    def __init__(self, reactor: Reactor, options: Options = ()) -> None:
        """Create a server that listens nowhere yet and serves no method."""
        self._queue = reactor.queue
        args = (*UNLIMITED_MESSAGES, ("grpc.so_reuseport", 0), *options)
        self._server = cygrpc.Server(args, False)  # noqa: FBT003 - not xDS
        self._server.register_completion_queue(self._queue)
        self._methods: dict[bytes, CallFactory] = {}
        self._registered: list[tuple[str, CallFactory]] = []
        self._accepting = True

    def listen(self, target: str) -> int:
        """Listen on ``host:port`` or ``unix:path``; return the port (1 for unix).

        Raises:
            OSError: the address is taken or cannot be bound.
        """
        try:
            port: int = self._server.add_http2_port(target.encode())
        except RuntimeError as error:
            raise OSError(str(error)) from error
        if port == 0:
            message = f"cannot listen on {target}: address already in use or not ours"
            raise OSError(message)
        return port

    def add_method(self, method: str, factory: CallFactory) -> None:
        """Serve ``/package.Service/Method`` by the calls that ``factory`` makes."""
        self._methods[method.encode()] = factory

    def add_hot_method(self, method: str, factory: CallFactory) -> None:
        """Serve a method whose calls are matched inside C-core."""
        self._registered.append((method, factory))
        self._server.register_method(method)

    def start(self) -> None:
        """Begin to accept calls."""
        self._server.start()
        for method, factory in self._registered:
            for _ in range(_POSTED_CALLS):
                self._post_registered(method, factory)
        self._post_any()

    def shutdown(self, done: Callable[[], None]) -> None:
        """Accept no more calls; ``done`` runs when the last one has ended."""
        self._accepting = False
        self._server.shutdown(self._queue, lambda _: done())

    def cancel_all_calls(self) -> None:
        """End every call that is still open."""
        self._server.cancel_all_calls()

    def _post_registered(self, method: str, factory: CallFactory) -> None:
        queue = self._queue
        request = self._server.request_registered_call

        def accept(event: Any) -> None:
            if not event.success or not self._accepting:
                return
            request(queue, queue, method, accept)
            factory(event.call, method, event.invocation_metadata)

        request(queue, queue, method, accept)

    def _post_any(self) -> None:
        self._server.request_call(self._queue, self._queue, self._accept_any)

    def _accept_any(self, event: Any) -> None:
        if not event.success or not self._accepting:
            return
        self._post_any()
        method = event.call_details.method
        factory = self._methods.get(method, _Unimplemented)
        factory(event.call, method.decode(), event.invocation_metadata)


class UnaryCall:
    """One unary call: its request comes once, its answer goes once.

    Subclasses say what to do in ``received`` and, if they wait, ``cancelled``.
    ``answer`` and ``fail`` may be called from any thread, once in all; what
    comes after the first, or after the client left, is dropped.
    """

    __slots__ = ("_call", "metadata", "open")

    def __init__(self, call: Any, _method: str, metadata: Any) -> None:
        """Take over a call that has just arrived."""
        self._call = call
        self.metadata = metadata
        self.open = True
        call.start_server_batch((_ReceiveMessage(0),), self)
        call.start_server_batch((_ReceiveClose(0),), self._closed)

    def received(self, message: bytes) -> None:
        """Handle the request; on the loop's thread."""
        raise NotImplementedError

    def cancelled(self) -> None:
        """The client left, or its deadline passed, before the answer."""

    def answer(self, message: bytes, metadata: Metadata | None = None) -> None:
        """Send the response and end the call."""
        if self.open:
            self.open = False
            first = _SendInitialMetadata(metadata, 0) if metadata else _NO_METADATA
            self._call.start_server_batch(
                (first, _SendMessage(message, 0), _STATUS_OK), None
            )

    def fail(self, code: int, details: str) -> None:
        """End the call with a status other than OK."""
        if self.open:
            self.open = False
            status = _SendStatus(None, code, details.encode(), 0)
            self._call.start_server_batch((_NO_METADATA, status), None)

    def __call__(self, event: Any) -> None:
        """Take the completed receive."""
        message = event.batch_operations[0].message()
        if message is not None:
            self.received(message)
        else:
            self.fail(cygrpc.StatusCode.internal, "the call carried no request")

    def _closed(self, event: Any) -> None:
        if self.open and event.batch_operations[0].cancelled():
            self.open = False
            self.cancelled()


class _Unimplemented(UnaryCall):
    """A method nobody serves."""

    __slots__ = ("_method",)

    def __init__(self, call: Any, method: str, metadata: Any) -> None:
        self._method = method
        super().__init__(call, method, metadata)

    def received(self, message: bytes) -> None:
        del message
        self.fail(
            cygrpc.StatusCode.unimplemented, f"method {self._method} is not served"
        )

    def __call__(self, event: Any) -> None:
        del event
        self.received(b"")


class StreamCall:
    """One streaming call. A message is received only when ``read`` asked for it.

    Everything here is called on the loop's thread; the hooks too.
    """

    __slots__ = ("_begun", "_call", "_sending", "_unsent", "metadata", "open")

    def __init__(self, call: Any, _method: str, metadata: Any) -> None:
        """Take over a call that has just arrived."""
        self._call = call
        self.metadata = metadata
        self.open = True
        self._begun = False
        self._sending = False
        self._unsent: deque[tuple[Any, ...]] = deque()
        call.start_server_batch((_ReceiveClose(0),), self._closed)

    def received(self, message: bytes) -> None:
        """Handle the message that ``read`` asked for."""
        raise NotImplementedError

    def half_closed(self) -> None:
        """Handle the end of the client's messages (or of the client)."""

    def cancelled(self) -> None:
        """Handle the loss of the client before ``finish``."""

    def read(self) -> None:
        """Ask for the next message; not again before it came."""
        self._call.start_server_batch((_ReceiveMessage(0),), self)

    def begin(self, metadata: Metadata | None = None) -> None:
        """Send the initial metadata; once, and before any message."""
        self._begun = True
        self._post((_SendInitialMetadata(metadata, 0),))

    def send(self, message: bytes) -> None:
        """Send ``message`` after those before it."""
        if not self._begun:
            self.begin()
        self._post((_SendMessage(message, 0),))

    def finish(self, code: int = _OK, details: str = "") -> None:
        """End the call once everything is sent."""
        if not self.open:
            return
        status = _SendStatus(None, code, details.encode(), 0)
        self._post((status,) if self._begun else (_NO_METADATA, status))
        self.open = False

    def _post(self, operations: tuple[Any, ...]) -> None:
        if not self.open:
            return
        if self._sending:
            self._unsent.append(operations)
        else:
            self._sending = True
            self._call.start_server_batch(operations, self._sent)

    def _sent(self, event: Any) -> None:
        if self._unsent and event.success:
            self._call.start_server_batch(self._unsent.popleft(), self._sent)
        else:
            self._sending = False

    def __call__(self, event: Any) -> None:
        """Take the completed receive."""
        message = event.batch_operations[0].message()
        if message is None:
            self.half_closed()
        else:
            self.received(message)

    def _closed(self, event: Any) -> None:
        if self.open and event.batch_operations[0].cancelled():
            self.open = False
            self.cancelled()


class ClientStream:
    """The client's end of a bidirectional stream, with a queue of its own.

    One thread opens it, receives and sends; ``cancel`` may come from any.
    """

    def __init__(self, target: str, method: str, metadata: Metadata = ()) -> None:
        """Dial ``target`` and open ``/package.Service/Method``; never blocks."""
        options = (*UNLIMITED_MESSAGES, ("grpc.enable_retries", 0))
        self._channel = cygrpc.Channel(target.encode(), options, None)
        start = (
            ((_SendInitialMetadata(tuple(metadata), 0),), self._sent),
            ((cygrpc.ReceiveInitialMetadataOperation(0),), None),
            ((cygrpc.ReceiveStatusOnClientOperation(0),), self._ended),
        )
        self._call = self._channel.segregated_call(
            0, method.encode(), None, None, None, None, start, None
        )
        self._sending = True
        self._unsent: deque[bytes] = deque()
        self._received: bytes | None = None
        self._over = False
        self.status: tuple[int, str] | None = None
        self._call.operate((_ReceiveMessage(0),), self._receive)

    def receive(self) -> bytes | None:
        """Wait for the next message; None when the stream has ended.

        ``status`` then tells the code and the text it ended with.
        """
        next_event = self._call.next_event
        while not self._over:
            event = next_event()
            if event.tag is not None:
                event.tag(event)
            if self._received is not None:
                message, self._received = self._received, None
                return message
        while self.status is None:
            event = next_event()
            if event.tag is not None:
                event.tag(event)
        return None

    def send(self, message: bytes) -> None:
        """Send ``message`` after those before it; never blocks."""
        if self._sending:
            self._unsent.append(message)
        else:
            self._sending = True
            self._call.operate((_SendMessage(message, 0),), self._sent)

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
            self._call.operate((_ReceiveMessage(0),), self._receive)

    def _sent(self, event: Any) -> None:
        if self._unsent and event.success:
            message = self._unsent.popleft()
            self._call.operate((_SendMessage(message, 0),), self._sent)
        else:
            self._sending = False

    def _ended(self, event: Any) -> None:
        operation = event.batch_operations[0]
        details = operation.details()
        self.status = (operation.code(), details or "")
        self._over = True


def metadata_values(metadata: Any) -> Mapping[str, str | bytes]:
    """Return a call's metadata by key; of repeated keys the last counts."""
    return {item.key: item.value for item in metadata}


def _retained_call(queue: Any) -> Any:
    """Return a finished call of ``queue``, made by calling ourselves once.

    An empty batch on it is the only way to post an event from another thread.
    """
    target = f"unix-abstract:nereid-{os.getpid()}-{id(queue)}"
    server = cygrpc.Server((("grpc.so_reuseport", 0),), False)  # noqa: FBT003
    server.register_completion_queue(queue)
    server.add_http2_port(target.encode())
    server.start()
    server.request_call(queue, queue, "accepted")
    client = threading.Thread(target=_call_once, args=(target,), daemon=True)
    client.start()
    call = queue.poll().call
    status = _SendStatus(None, _OK, b"", 0)
    call.start_server_batch((_NO_METADATA, status, _ReceiveClose(0)), "answered")
    server.shutdown(queue, "down")
    tags = {queue.poll().tag, queue.poll().tag}
    client.join()
    if tags != {"answered", "down"}:
        message = f"the completion queue answered {tags} to its first call"
        raise RuntimeError(message)
    return call


def _call_once(target: str) -> None:
    stream = ClientStream(target, "/nereid.Reactor/Wake")
    with contextlib.closing(stream):
        stream.receive()
