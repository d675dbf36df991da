"""The router's stream from control: route tables come, acknowledgements go.

While control is away the router serves by the last table it had, and dials again.
"""

import time
from collections.abc import Callable
from typing import Final

import structlog

from protos import control_pb2
from services.core.completion_queue import ClientStream, Reactor
from services.core.errors import ServingError
from services.core.lifecycle import ModelState
from services.core.model_config_proto import from_proto
from services.router.route_table import Route, RouteTable, TrafficSplit

_log = structlog.get_logger(__name__)

_ATTACH_METHOD: Final = "/nereid.control.RouterControl/Attach"
_LOOK_EVERY_NS: Final = 20_000_000
_FIRST_PAUSE_NS: Final = 100_000_000
_LONGEST_PAUSE_NS: Final = 2_000_000_000

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
        splits={
            model.name: TrafficSplit(
                weights=dict(model.split.weights),
                sticky_parameter=model.split.sticky_parameter,
                sticky_header=model.split.sticky_header,
                shadow_version=model.split.shadow_version,
                shadow_tolerance=model.split.shadow_tolerance,
            )
            for model in message.models
            if model.HasField("split")
        },
        loadable=[model.name for model in message.models if model.loads_on_demand],
    )


class ControlClient:
    """Keeps one RouterControl.Attach stream open, from the loop's own thread.

    A thread that waited on the stream would take part in C-core's polling: it
    would be woken for the clients' sockets and wake the loop in turn, which cost
    20 us of CPU a request at concurrency 32. So the loop looks at the stream every
    20 ms instead.
    """

    def __init__(
        self,
        reactor: Reactor,
        target: str,
        hello: control_pb2.RouterHello,
        on_table: Callable[[RouteTable], None],
    ) -> None:
        """Prepare to dial ``target``; ``on_table`` is called on the loop's thread."""
        self._reactor = reactor
        self._target = target
        self._hello = control_pb2.RouterReport(hello=hello)
        self._on_table = on_table
        self._stream: ClientStream | None = None
        self._takers: dict[str, Callable[[control_pb2.RouterUpdate], None]] = {
            "routes": self._apply_routes
        }
        self._greeters: list[Callable[[], None]] = []
        self._pause_ns = _FIRST_PAUSE_NS
        self._stopped = False

    def on_update(
        self, kind: str, take: Callable[[control_pb2.RouterUpdate], None]
    ) -> None:
        """Have ``take`` called with every update of one kind."""
        self._takers[kind] = take

    def on_dial(self, greet: Callable[[], None]) -> None:
        """Have ``greet`` called on every new stream, right after the hello."""
        self._greeters.append(greet)

    @property
    def has_stream(self) -> bool:
        """Whether there is a stream, or at least an attempt at one."""
        return self._stream is not None

    def start(self) -> None:
        """Dial, and keep dialling."""
        if self._stopped:
            return
        self._stream = ClientStream(self._target, _ATTACH_METHOD)
        self.send(self._hello)
        for greet in self._greeters:
            greet()
        self._look()

    def acknowledge(self, revision: int) -> None:
        """Tell control that ``revision`` is in force."""
        applied = control_pb2.RoutesApplied(revision=revision)
        self.send(control_pb2.RouterReport(applied=applied))

    def send(self, report: control_pb2.RouterReport) -> bool:
        """Send ``report``; on the loop's thread.

        Returns:
            False if there is no stream. True promises nothing: it may break.
        """
        if self._stream is None:
            return False
        self._stream.send(report.SerializeToString())
        return True

    def stop(self) -> None:
        """Hang up and dial no more."""
        self._stopped = True
        if self._stream is not None:
            self._stream.cancel()

    def _look(self) -> None:
        stream = self._stream
        if stream is None:
            return
        for message in stream.arrived():
            self._pause_ns = _FIRST_PAUSE_NS
            try:
                self._apply(message)
            except Exception:  # noqa: BLE001 - the next one may be better
                _log.exception("an update from control could not be applied")
        if stream.status is None:
            self._after(_LOOK_EVERY_NS, self._look)
            return
        stream.close()
        self._stream = None
        if self._stopped:
            return
        _log.info("control is away", reason=stream.status[1])
        self._after(self._pause_ns, self.start)
        self._pause_ns = min(2 * self._pause_ns, _LONGEST_PAUSE_NS)

    def _after(self, delay_ns: int, callback: Callable[[], None]) -> None:
        self._reactor.call_roughly_at(time.monotonic_ns() + delay_ns, callback)

    def _apply(self, message: bytes) -> None:
        update = control_pb2.RouterUpdate.FromString(message)
        take = self._takers.get(update.WhichOneof("update") or "")
        if take is not None:
            take(update)

    def _apply_routes(self, update: control_pb2.RouterUpdate) -> None:
        try:
            table = route_table_from_proto(update.routes)
        except ServingError as error:
            _log.error("a route table was refused", reason=str(error))
            return
        self._hello.hello.revision = table.revision
        self._on_table(table)
