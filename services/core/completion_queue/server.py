"""A gRPC server on a reactor's queue."""

import weakref
from collections.abc import Callable
from typing import Any, Final

from grpc._cython import cygrpc  # type: ignore[attr-defined]

from services.core.completion_queue.call import (
    CallFactory,
    StreamCall,
    UnimplementedCall,
)
from services.core.completion_queue.client_stream import UNLIMITED_MESSAGES, Options
from services.core.completion_queue.reactor import Reactor

# Calls of a hot method that may arrive before we have looked: C-core hands each
# to a request that was posted for it beforehand.
_POSTED_CALLS: Final = 128
# All headers of a call. The gateway lets through 64 KiB of HTTP's; C-core counts 32
# bytes more for each. By default it refuses above 16 KiB, and above 8 KiB by chance.
_LONGEST_METADATA_BYTES: Final = 128 << 10
_OPTIONS: Final = (
    *UNLIMITED_MESSAGES,
    ("grpc.so_reuseport", 0),
    ("grpc.max_metadata_size", _LONGEST_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _LONGEST_METADATA_BYTES),
)


class Server:
    """One gRPC server on a reactor's queue: its addresses and its methods."""

    def __init__(self, reactor: Reactor, options: Options = ()) -> None:
        """Create a server that listens nowhere yet and serves no method."""
        self._queue = reactor.queue
        self._server = cygrpc.Server((*_OPTIONS, *options), False)  # noqa: FBT003 - not xDS
        self._server.register_completion_queue(self._queue)
        self._methods: dict[bytes, CallFactory] = {}
        self._registered: list[tuple[str, CallFactory]] = []
        self._streams: weakref.WeakSet[StreamCall] = weakref.WeakSet()
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
        """Accept no more calls; ``done`` runs when the last one has ended.

        Streams hang up, which else might last for ever. What has been answered
        reaches its client, be it slow; ``cancel_all_calls`` puts an end to that.
        """
        self._accepting = False
        self._server.shutdown(self._queue, lambda _: done())
        for stream in tuple(self._streams):
            stream.hang_up()

    @property
    def streams(self) -> tuple[StreamCall, ...]:
        """The streams that are open, and some that have just ended."""
        return tuple(self._streams)

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
            call = factory(event.call, method, event.invocation_metadata)
            if isinstance(call, StreamCall):
                self._streams.add(call)

        request(queue, queue, method, accept)

    def _post_any(self) -> None:
        self._server.request_call(self._queue, self._queue, self._accept_any)

    def _accept_any(self, event: Any) -> None:
        if not event.success or not self._accepting:
            return
        self._post_any()
        method = event.call_details.method
        factory = self._methods.get(method, UnimplementedCall)
        self._begin(factory(event.call, method.decode(), event.invocation_metadata))

    def _begin(self, call: object) -> None:
        if isinstance(call, StreamCall):
            self._streams.add(call)
