"""The router's stream from control: route tables come, acknowledgements go.

A thread of its own with grpcio's public API. While control is away the router
serves by the last table it had, and dials again.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Final

import grpc
import structlog

from protos import control_pb2, control_pb2_grpc
from services.core.completion_queue import UNLIMITED_MESSAGES
from services.core.errors import ServingError
from services.core.lifecycle import ModelState
from services.core.model_config_proto import from_proto
from services.router.route_table import Route, RouteTable

_log = structlog.get_logger(__name__)

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0

_STATES: Final = {
    control_pb2.VersionRoute.UNKNOWN: ModelState.UNKNOWN,
    control_pb2.VersionRoute.LOADING: ModelState.LOADING,
    control_pb2.VersionRoute.READY: ModelState.READY,
    control_pb2.VersionRoute.UNLOADING: ModelState.UNLOADING,
    control_pb2.VersionRoute.UNAVAILABLE: ModelState.UNAVAILABLE,
}


def route_table_from_proto(message: control_pb2.RouteTable) -> RouteTable:
    """Return ``message`` as the immutable value the router looks routes up in.

    Raises:
        ConfigError: a configuration that is not complete; control sends none.
    """
    routes = [
        Route(
            model=model.name,
            version=version.version,
            state=_STATES[version.state],
            reason=version.reason,
            generation=version.generation,
            config=from_proto(version.config),
            config_message=version.config.SerializeToString(),
        )
        for model in message.models
        for version in model.versions
    ]
    return RouteTable.of(
        routes,
        names=[model.name for model in message.models],
        revision=message.revision,
        ready=message.ready,
    )


class ControlClient:
    """Keeps one RouterControl.Attach stream open."""

    def __init__(
        self,
        target: str,
        hello: control_pb2.RouterHello,
        on_table: Callable[[RouteTable], None],
    ) -> None:
        """Prepare to dial ``target``; ``on_table`` is called on the stream's thread."""
        self._target = target
        self._hello = hello
        self._on_table = on_table
        self._reports: queue.SimpleQueue[control_pb2.RouterReport | None] = (
            queue.SimpleQueue()
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Begin to dial."""
        self._thread.start()

    def acknowledge(self, revision: int) -> None:
        """Tell control that ``revision`` is in force; from any thread."""
        applied = control_pb2.RoutesApplied(revision=revision)
        self._reports.put(control_pb2.RouterReport(applied=applied))

    def stop(self) -> None:
        """Hang up and dial no more."""
        self._stopped.set()
        self._reports.put(None)

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stopped.is_set():
            try:
                with grpc.insecure_channel(
                    self._target, options=UNLIMITED_MESSAGES
                ) as channel:
                    stub = control_pb2_grpc.RouterControlStub(channel)
                    self._reports = queue.SimpleQueue()
                    for update in stub.Attach(self._outgoing(self._reports)):
                        pause_s = _FIRST_PAUSE_S
                        self._apply(update)
                        if self._stopped.is_set():
                            return
            except grpc.RpcError as error:
                _log.info("control is away", reason=error.details(), retry_s=pause_s)
            self._stopped.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _outgoing(
        self, reports: "queue.SimpleQueue[control_pb2.RouterReport | None]"
    ) -> Iterator[control_pb2.RouterReport]:
        yield control_pb2.RouterReport(hello=self._hello)
        while (report := reports.get()) is not None:
            yield report

    def _apply(self, update: control_pb2.RouterUpdate) -> None:
        if update.WhichOneof("update") != "routes":
            return
        try:
            table = route_table_from_proto(update.routes)
        except ServingError as error:
            _log.error("a route table was refused", reason=str(error))
            return
        self._on_table(table)
