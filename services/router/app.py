"""The router process: two gRPC servers on one queue, one stream to control.

The public server is a complete inference.GRPCInferenceService. The internal one
serves the same and, besides, what only our own parts may call: the workers'
streams and the REST service behind Envoy.
"""

import argparse
import functools
import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from protos import control_pb2
from services.core import log_settings_proto, logs
from services.core.cache_config import read_cache_config
from services.core.completion_queue import Options, Reactor, Server
from services.core.flags import add_bool
from services.core.health_names import ROUTER_PROCESS
from services.core.memory_return import MemoryReturn
from services.core.process_tuning import settle
from services.core.restrictions import (
    GRPC_HEADER_PREFIX,
    Restriction,
    parse_restrictions,
)
from services.router.control_client import ControlClient
from services.router.demand_reporter import DemandReporter
from services.router.dispatcher import SERVE_METHOD
from services.router.doors import Doors
from services.router.forward import ControlForwarder
from services.router.header_forwarding import HeaderForwarding
from services.router.health import SERVICE_NAME as HEALTH_SERVICE
from services.router.health import Health
from services.router.inference import Inference
from services.router.queue_limits import (
    QueueLimits,
    backlog_hold_until,
    hold_until,
)
from services.router.readiness import Readiness
from services.router.reflection import (
    REFLECTION_METHODS,
    reflection_calls,
)
from services.router.reflection import SERVICE_NAME as REFLECTION_SERVICE
from services.router.response_cache import ResponseCache
from services.router.rest_infer_call import RestInferCall
from services.router.route_table import RouteTable
from services.router.servicer import InferenceServicer
from services.router.shared_memory_objects import object_size
from services.router.shared_memory_registry import SharedMemoryRegistry
from services.router.shared_responses import SharedResponses
from services.router.statistics_reporter import REPORT_EVERY_NS, StatisticsReporter
from services.router.tracing import connect_tracing

_log = structlog.get_logger(__name__)

_COLD_THREADS: Final = 8
# A load takes as long as it takes; meanwhile metadata is to be had.
_MANAGEMENT_THREADS: Final = 32
# Models that are asked whether they are ready may take seconds, too.
_ASKING_THREADS: Final = 8
_EXIT_TIMEOUT_S: Final = 30
_QUIET_POLL_NS: Final = 20_000_000
_LAST_REPORT_NS: Final = 1_000_000_000
# A worker that is stopped or cut off answers no pings: its batches run elsewhere
# after at most the first two together. One that computes does answer, from a thread
# of C-core, which may be late on a busy machine; and the loop itself is late to read
# the answer while it copies a request of a gigabyte, for several seconds.
_KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_PUBLIC_SERVICES: Final = (
    "inference.GRPCInferenceService",
    HEALTH_SERVICE,
    REFLECTION_SERVICE,
)


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return the settings of ``nereid router``."""
    parser = argparse.ArgumentParser(
        prog="nereid router", description="Batch requests and hand them to workers."
    )
    parser.add_argument("--grpc-address", default="0.0.0.0", help="public address")  # noqa: S104
    parser.add_argument("--grpc-port", type=int, default=8001, help="0: no public port")
    parser.add_argument(
        "--internal-listen",
        default="127.0.0.1:8010",
        help="unix:PATH or HOST:PORT for workers and the gateway",
    )
    parser.add_argument(
        "--internal-advertise",
        help="where workers reach it (default: --internal-listen)",
    )
    parser.add_argument("--control", required=True, help="unix:PATH or HOST:PORT")
    parser.add_argument("--http-max-input-size", type=int, default=64 << 20)
    add_bool(
        parser,
        "--allow-client-shm",
        default=False,
        text="let clients share memory with workers on their host",
    )
    add_bool(
        parser,
        "--allow-statistics",
        default=True,
        text="count what becomes of requests",
    )
    parser.add_argument(
        "--no-worker-timeout",
        type=float,
        default=10.0,
        metavar="SECS",
        help="how long requests wait while no worker serves their model",
    )
    parser.add_argument(
        "--max-queue-bytes",
        type=int,
        default=1 << 30,
        help="requests of one model version that wait together",
    )
    parser.add_argument(
        "--cache-config",
        action="append",
        default=[],
        metavar="CACHE,KEY=VALUE",
        help="local,size=BYTES or redis,...: where responses are kept (default: not)",
    )
    for protocol in ("http", "grpc"):
        parser.add_argument(f"--{protocol}-header-forward-pattern", default="")
    parser.add_argument("--http-restricted-api", action="append", default=[])
    parser.add_argument("--grpc-restricted-protocol", action="append", default=[])
    parser.add_argument("--exit-timeout-secs", type=int, default=_EXIT_TIMEOUT_S)
    parser.add_argument("--log-verbose", type=int, default=0)
    settings = parser.parse_args(argv)
    try:
        read_cache_config(settings.cache_config)
    except ValueError as error:
        parser.error(f"--cache-config: {error}")
    return settings


def _limits(settings: argparse.Namespace) -> QueueLimits:
    return QueueLimits(
        no_worker_timeout_ns=int(settings.no_worker_timeout * 1e9),
        max_queue_bytes=settings.max_queue_bytes,
        hold_until=hold_until(os.environ),
        backlog_hold_until=backlog_hold_until(os.environ),
    )


def _cache(
    settings: argparse.Namespace, reactor: Reactor
) -> ResponseCache | SharedResponses | None:
    config = read_cache_config(settings.cache_config)
    if config.redis is not None:
        return SharedResponses(settings.control, reactor)
    return ResponseCache(config.local_bytes) if config.local_bytes else None


class RouterApp:
    """Wires the parts of a router together and runs them."""

    def __init__(self, settings: argparse.Namespace) -> None:
        """Build everything; nothing listens yet."""
        self._settings = settings
        self._reactor = Reactor()
        self._memory = MemoryReturn()
        shared_memory = SharedMemoryRegistry(
            is_allowed=settings.allow_client_shm,
            size_of=object_size,
            has_gpu=self._has_gpu,
        )
        self._pool = ThreadPoolExecutor(_COLD_THREADS, thread_name_prefix="cold")
        self._inference = Inference(
            self._reactor,
            self._readiness_changed,
            shared_memory=shared_memory,
            limits=_limits(settings),
            cache=_cache(settings, self._reactor),
            pool=self._pool,
            counts=settings.allow_statistics,
        )
        self._management = ThreadPoolExecutor(_MANAGEMENT_THREADS, "management")
        self._forwarder = ControlForwarder(settings.control)
        self._asking = ThreadPoolExecutor(_ASKING_THREADS, "asking")
        readiness = Readiness(self._inference, self._forwarder.readiness())
        self._servicer = InferenceServicer(self._inference, readiness)
        self._health = Health(self._is_serving)
        self._doors = Doors(
            inference=self._inference,
            reactor=self._reactor,
            pool=self._pool,
            management=self._management,
            asking=self._asking,
            readiness=readiness,
            forwarder=self._forwarder,
            shared_memory=shared_memory,
            max_input_bytes=settings.http_max_input_size,
            grpc_headers=HeaderForwarding(settings.grpc_header_forward_pattern),
            http_headers=HeaderForwarding(settings.http_header_forward_pattern),
        )
        restricted = parse_restrictions(
            settings.grpc_restricted_protocol, GRPC_HEADER_PREFIX
        )
        self._public = self._server(restricted)
        self._internal = self._server(restricted, _KEEPALIVE, is_internal=True)
        self._internal.add_method(SERVE_METHOD, self._inference.dispatcher.accept)
        self._doors.open_rest(
            self._internal, parse_restrictions(settings.http_restricted_api)
        )
        endpoint = settings.internal_advertise or settings.internal_listen
        self._control = ControlClient(
            self._reactor,
            settings.control,
            control_pb2.RouterHello(
                router_id=uuid.uuid4().hex, worker_endpoint=endpoint
            ),
            self._table_arrived,
        )
        self._reporter = StatisticsReporter(
            self._inference.statistics,
            self._inference.waiting,
            self._control.send,
            self._inference.cache,
        )
        on_demand = self._inference.on_demand
        self._demand = DemandReporter(
            on_demand.room, on_demand.uses.uses, self._control.send, time.monotonic_ns
        )
        self._connect_reporter()
        self._connect_checkpoints()
        self._control.on_update(
            "log_settings",
            lambda update: log_settings_proto.obey(update.log_settings),
        )
        self._traces = connect_tracing(
            self._control, self._inference, self._reactor, endpoint
        )

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain.

        Raises:
            OSError: an address cannot be listened on.
        """
        settings = self._settings
        self._internal.listen(settings.internal_listen)
        if settings.grpc_port:
            self._public.listen(f"{settings.grpc_address}:{settings.grpc_port}")
        self._internal.start()
        self._public.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        self._control.start()
        self._report_at(time.monotonic_ns() + REPORT_EVERY_NS)
        settle()
        _log.info("router is up", grpc_port=settings.grpc_port)
        self._reactor.run()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._management.shutdown(wait=False, cancel_futures=True)
        self._asking.shutdown(wait=False, cancel_futures=True)

    def _server(
        self,
        restrictions: Mapping[str, Restriction],
        options: Options = (),
        *,
        is_internal: bool = False,
    ) -> Server:
        server = Server(self._reactor, options)
        self._doors.open_grpc(
            server, self._servicer, self._health, restrictions, is_internal=is_internal
        )
        for name in REFLECTION_METHODS:
            server.add_method(name, reflection_calls(_PUBLIC_SERVICES))
        return server

    def _has_gpu(self, index: int) -> bool:
        return self._inference.dispatcher.has_gpu(index)

    def _is_serving(self, service: str) -> bool | None:
        if service == ROUTER_PROCESS:
            return True
        if not service or service in _PUBLIC_SERVICES:
            return self._inference.is_ready()
        if service in self._inference.table.models:
            return self._inference.is_model_ready(service, "")
        return None

    def _readiness_changed(self) -> None:
        self._health.changed()

    def _connect_reporter(self) -> None:
        control, reporter = self._control, self._reporter
        control.on_dial(reporter.connected)
        on_demand = self._inference.on_demand
        on_demand.on_wanted = self._demand.report
        control.on_dial(self._demand.connected)
        control.on_update(
            "demand_refused",
            lambda update: on_demand.room.refuse(
                update.demand_refused.model, update.demand_refused.reason
            ),
        )
        control.on_update(
            "statistics_applied",
            lambda update: reporter.applied(update.statistics_applied.sequence),
        )
        control.on_update(
            "collect_statistics",
            lambda update: reporter.collect(update.collect_statistics.collection),
        )
        control.on_update(
            "statistics_settings",
            lambda update: self._inference.statistics.distribute(
                is_wanted=update.statistics_settings.latency_distributions
            ),
        )

    def _connect_checkpoints(self) -> None:
        control, checkpoints = self._control, self._inference.checkpoints
        checkpoints.connect(control.send)
        control.on_dial(checkpoints.connected)
        control.on_update("state_stored", checkpoints.saved)
        control.on_update("state_found", checkpoints.found)

    def _report_at(self, when_ns: int) -> None:
        """Report at ``when_ns``, and regularly from then on."""

        def report() -> None:
            now_ns = time.monotonic_ns()
            self._report_at(now_ns + REPORT_EVERY_NS)
            self._reporter.tick(now_ns - when_ns)
            self._demand.report()
            self._memory.tick(now_ns)

        self._reactor.call_roughly_at(when_ns, report)

    def _table_arrived(self, table: RouteTable) -> None:
        """Apply a new table; acknowledge it when it is in force."""
        acknowledge = functools.partial(self._control.acknowledge, table.revision)
        self._inference.apply(table, acknowledge)
        self._readiness_changed()

    def _signalled(self, _number: int, _frame: object) -> None:
        # No log line here: the signal may have come while one was being written,
        # with a lock that the handler would wait for in vain.
        self._reactor.call_soon_threadsafe(self._begin_stop)

    def _begin_stop(self) -> None:
        """Refuse newcomers, let the admitted finish, then close both servers."""
        if self._inference.stopping:
            return
        _log.info("stopping")
        streams = (*self._public.streams, *self._internal.streams)
        self._inference.stop(
            one for one in streams if isinstance(one, RestInferCall) and one.is_arriving
        )
        self._readiness_changed()
        deadline_ns = (
            time.monotonic_ns() + self._settings.exit_timeout_secs * 1_000_000_000
        )
        self._stop_when_quiet(deadline_ns)

    def _stop_when_quiet(self, deadline_ns: int) -> None:
        now_ns = time.monotonic_ns()
        if not self._inference.is_quiet and now_ns < deadline_ns:
            again = functools.partial(self._stop_when_quiet, deadline_ns)
            self._reactor.call_roughly_at(now_ns + _QUIET_POLL_NS, again)
            return
        self._inference.close()
        self._traces.flush()
        self._reporter.collect(0)
        self._close_when_reported(now_ns + _LAST_REPORT_NS, deadline_ns)

    def _close_when_reported(self, report_by_ns: int, deadline_ns: int) -> None:
        """Close once control has everything, if it is there and not too slow."""
        now_ns = time.monotonic_ns()
        is_awaited = self._control.has_stream and not self._reporter.is_settled
        if is_awaited and now_ns < report_by_ns:
            again = functools.partial(
                self._close_when_reported, report_by_ns, deadline_ns
            )
            self._reactor.call_roughly_at(now_ns + _QUIET_POLL_NS, again)
            return
        self._control.stop()
        self._close_servers(deadline_ns)

    def _close_servers(self, deadline_ns: int) -> None:
        """Leave the loop when the last answer has reached its client, or in time."""
        remaining = {self._public, self._internal}

        def closed(server: Server) -> None:
            remaining.discard(server)
            if not remaining:
                self._reactor.stop()

        for server in tuple(remaining):
            server.shutdown(functools.partial(closed, server))
            self._reactor.call_roughly_at(deadline_ns, server.cancel_all_calls)
        # Loads and the like would be waited for: their clients learn at once.
        self._forwarder.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``nereid router``; return the exit status."""
    settings = parse_arguments(sys.argv[1:] if argv is None else argv)
    logs.configure(verbose=settings.log_verbose)
    try:
        RouterApp(settings).run()
    except OSError as error:
        sys.stderr.write(f"nereid router: {error}\n")
        return 1
    return 0
