"""grpc.health.v1 on the completion queue.

The same truth as ServerReady and ModelReady, by service name: "" is the server,
else it is a model's name.
"""

from collections.abc import Callable
from typing import Final

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from services.core.completion_queue import (
    NativeCall,
    NativeMetadata,
    StreamCall,
    UnaryCall,
)

SERVICE_NAME: Final = "grpc.health.v1.Health"
CHECK_METHOD: Final = f"/{SERVICE_NAME}/Check"
WATCH_METHOD: Final = f"/{SERVICE_NAME}/Watch"

_SERVING: Final[int] = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final[int] = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN: Final[int] = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
_NOT_FOUND: Final[int] = grpc.StatusCode.NOT_FOUND.value[0]
_INVALID_ARGUMENT: Final[int] = grpc.StatusCode.INVALID_ARGUMENT.value[0]


class Health:
    """Who asks, and who watches.

    ``is_serving`` returns whether a service serves; None if it is unknown.
    """

    def __init__(self, is_serving: Callable[[str], bool | None]) -> None:
        """Answer by ``is_serving``."""
        self._is_serving = is_serving
        self._watchers: set[_Watch] = set()

    def status_of(self, service: str) -> int:
        """Return the protocol's status of ``service``."""
        serving = self._is_serving(service)
        if serving is None:
            return _UNKNOWN
        return _SERVING if serving else _NOT_SERVING

    def changed(self) -> None:
        """Tell the watchers whose status is another now."""
        for watcher in tuple(self._watchers):
            watcher.update()

    def check(
        self, call: NativeCall, method: str, metadata: NativeMetadata
    ) -> UnaryCall:
        """Serve one call of Check."""
        return _Check(call, method, metadata, self)

    def watch(
        self, call: NativeCall, method: str, metadata: NativeMetadata
    ) -> StreamCall:
        """Serve one call of Watch."""
        return _Watch(call, method, metadata, self)

    def join(self, watcher: "_Watch") -> None:
        """Add a watcher."""
        self._watchers.add(watcher)

    def leave(self, watcher: "_Watch") -> None:
        """Remove a watcher."""
        self._watchers.discard(watcher)


class _Check(UnaryCall):
    __slots__ = ("_health",)

    def __init__(
        self, call: NativeCall, method: str, metadata: NativeMetadata, health: Health
    ) -> None:
        self._health = health
        super().__init__(call, method, metadata)

    def received(self, message: bytes) -> None:
        try:
            request = health_pb2.HealthCheckRequest.FromString(message)
        except DecodeError:
            self.fail(_INVALID_ARGUMENT, "not a HealthCheckRequest")
            return
        status = self._health.status_of(request.service)
        if status == _UNKNOWN:
            self.fail(_NOT_FOUND, f"unknown service '{request.service}'")
        else:
            response = health_pb2.HealthCheckResponse(status=status)
            self.answer(response.SerializeToString())


class _Watch(StreamCall):
    __slots__ = ("_health", "_last", "_service")

    def __init__(
        self, call: NativeCall, method: str, metadata: NativeMetadata, health: Health
    ) -> None:
        super().__init__(call, method, metadata)
        self._health = health
        self._service = ""
        self._last: int | None = None
        self.read()

    def received(self, message: bytes) -> None:
        try:
            request = health_pb2.HealthCheckRequest.FromString(message)
        except DecodeError:
            self.finish(_INVALID_ARGUMENT, "not a HealthCheckRequest")
            return
        self._service = request.service
        self._health.join(self)
        self.update()

    def half_closed(self) -> None:
        self.finish(_INVALID_ARGUMENT, "the call carried no HealthCheckRequest")

    def cancelled(self) -> None:
        self._health.leave(self)

    def update(self) -> None:
        status = self._health.status_of(self._service)
        if status != self._last:
            self._last = status
            response = health_pb2.HealthCheckResponse(status=status)
            self.send(response.SerializeToString())
