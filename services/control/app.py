"""The process ``nereid control``."""

import asyncio
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Final

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from protos import (
    control_pb2_grpc,
    rest_pb2_grpc,
)
from services.control.catalog import Catalog
from services.control.command_line import ControlSettings, parse
from services.control.ensemble_members import check_members
from services.control.error_interceptor import ErrorInterceptor
from services.control.kept_metrics import KeptMetrics
from services.control.live_settings import LiveSettings, live_settings
from services.control.management_servicer import ManagementServicer, UnservedMethods
from services.control.metrics_servicer import MetricsServicer
from services.control.patience import patience
from services.control.placing import place_version
from services.control.readiness_servicer import ReadinessServicer
from services.control.reconciler import Reconciler
from services.control.response_servicer import ResponseServicer
from services.control.response_store import ResponseStore
from services.control.router_servicer import RouterServicer
from services.control.settings_servicer import SettingsServicer
from services.control.state_checkpoints import StateCheckpoints
from services.control.statistics import Statistics
from services.control.statistics_servicer import StatisticsServicer
from services.control.store import NoStore, RedisStore, Store
from services.control.supervisor import Supervisor
from services.control.traffic_servicer import TrafficServicer
from services.control.worker_servicer import WorkerServicer
from services.core import logs
from services.core.clock import MonotonicClock
from services.core.errors import InternalError

_log = structlog.get_logger(__name__)

# Generations and revisions count on from the epoch's first number, so that no
# number is ever given twice, whatever was not written in time.
_NUMBERS_PER_EPOCH_BITS: Final = 20

# How long workers that are started beside us may take to come.
_GATHER_S: Final = 20.0
_STOP_GRACE_S: Final = 1.0

_SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    # A peer whose host is gone is noticed.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)


def main(argv: list[str]) -> int:
    """Run control until it is told to stop.

    Returns:
        0 after SIGTERM or SIGINT; 1 if it cannot start, or if a model failed to
        load at the start and ``--exit-on-error`` holds.
    """
    settings = parse(argv)
    logs.configure(verbose=settings.log_verbose)
    return asyncio.run(_Process(settings=settings).run())


@dataclass(slots=True, kw_only=True)
class _Process:
    settings: ControlSettings
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    status: int = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        store = _store(self.settings.redis_url)
        supervisor = await _supervisor(store, self.settings)
        catalog = Catalog(supervisor, self.settings.catalog, MonotonicClock())
        healths = health.aio.HealthServicer()  # type: ignore[attr-defined]
        statistics = Statistics(
            store, supervisor.routers, MonotonicClock(), self.settings.metrics
        )
        live = await live_settings(
            self.settings.live,
            supervisor,
            store,
            first_session=supervisor.reconciler.table.revision,
        )
        supervisor.count_by(statistics.count)
        metrics = KeptMetrics(store)
        states = StateCheckpoints(store)
        server = server_of(
            supervisor, catalog, statistics, live, metrics, states=states
        )
        traffic = TrafficServicer(supervisor, store, statistics)
        await traffic.restore()
        server.add_generic_rpc_handlers((traffic.methods(),))
        responses = _responses(self.settings)
        control_pb2_grpc.add_ResponseControlServicer_to_server(
            ResponseServicer(responses), server
        )
        health_pb2_grpc.add_HealthServicer_to_server(healths, server)
        try:
            server.add_insecure_port(self.settings.listen)
        except RuntimeError as error:
            sys.stderr.write(
                f"error: control cannot listen on {self.settings.listen}: {error}\n"
            )
            return 1
        await server.start()
        await healths.set("", health_pb2.HealthCheckResponse.SERVING)
        _log.info("control is listening", address=self.settings.listen)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(store.run())
            counting = tasks.create_task(statistics.run())
            keeping = tasks.create_task(states.run())
            restoring = tasks.create_task(metrics.restore())
            serving = tasks.create_task(self._serve(supervisor, catalog))
            tidying = tasks.create_task(catalog.tidy())
            await self.stopping.wait()
            await healths.enter_graceful_shutdown()
            await server.stop(_STOP_GRACE_S)
            writing.cancel()
            counting.cancel()
            keeping.cancel()
            restoring.cancel()
            serving.cancel()
            tidying.cancel()
        live.traces.close()
        catalog.close()
        await statistics.flush()
        await store.close()
        if responses is not None:
            await responses.close()
        return self.status

    async def _serve(self, supervisor: Supervisor, catalog: Catalog) -> None:
        await self._gather(supervisor)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(catalog.follow_workers())
            tasks.create_task(catalog.serve_demand())
            try:
                failures = await catalog.start_up()
            except InternalError as error:
                self._fail(str(error), [])
                return
            if failures and self.settings.exit_on_error:
                self._fail("failed to load all models", failures)
                return
            _log.info("start-up is over", failures=len(failures))
            tasks.create_task(catalog.forget_strangers())
            tasks.create_task(catalog.poll())

    async def _gather(self, supervisor: Supervisor) -> None:
        """Wait for the workers that are being started, but not for ever.

        Otherwise the first to come would get instances that belong elsewhere: what
        is placed stays where it is.
        """
        expected = self.settings.expected_workers
        try:
            async with patience(_GATHER_S):
                await supervisor.until(lambda: supervisor.worker_count >= expected)
        except TimeoutError:
            present = supervisor.worker_count
            _log.warning("workers are missing", present=present, expected=expected)

    def _fail(self, what: str, reasons: list[str]) -> None:
        lines = [f"error: creating server: Internal - {what}", *reasons]
        sys.stderr.write("".join(f"{line.rstrip()}\n" for line in lines))
        self.status = 1
        self.stopping.set()


def _store(url: str) -> Store:
    return RedisStore(url) if url else NoStore()


def _responses(settings: ControlSettings) -> ResponseStore | None:
    cache = settings.responses
    return ResponseStore(settings.redis_url, cache) if cache is not None else None


async def _supervisor(store: Store, settings: ControlSettings) -> Supervisor:
    epoch = await store.begin_epoch(int(time.time()))
    reconciler = Reconciler(
        place_version,
        check_members,
        first_number=epoch << _NUMBERS_PER_EPOCH_BITS,
        strict_readiness=settings.strict_readiness,
        load_retries=settings.load_retries,
    )
    supervisor = Supervisor(reconciler, store, MonotonicClock())
    supervisor.restore(await store.restore())
    await supervisor.remember_workers()
    return supervisor


def server_of(
    supervisor: Supervisor,
    catalog: Catalog,
    statistics: Statistics,
    live: LiveSettings,
    metrics: KeptMetrics,
    *,
    states: StateCheckpoints,
) -> grpc.aio.Server:
    """Return a server with every door of control but the health check's."""
    server = grpc.aio.server(
        interceptors=(ErrorInterceptor(),), options=_SERVER_OPTIONS
    )
    control_pb2_grpc.add_WorkerControlServicer_to_server(
        WorkerServicer(supervisor, live, metrics), server
    )
    control_pb2_grpc.add_RouterControlServicer_to_server(
        RouterServicer(
            supervisor,
            statistics,
            statistics.order,
            live,
            catalog.on_demand,
            states=states,
        ),
        server,
    )
    control_pb2_grpc.add_ReadinessControlServicer_to_server(
        ReadinessServicer(supervisor), server
    )
    counted = StatisticsServicer(supervisor, statistics, metrics)
    control_pb2_grpc.add_StatisticsControlServicer_to_server(counted, server)
    server.add_generic_rpc_handlers(
        (
            ManagementServicer(catalog, supervisor).methods(),
            counted.methods(),
            SettingsServicer(supervisor, live.traces, live.log).methods(),
            UnservedMethods(),
        )
    )
    rest_pb2_grpc.add_MetricsServiceServicer_to_server(
        MetricsServicer(
            supervisor, statistics, metrics, MonotonicClock(), catalog.on_demand
        ),
        server,
    )
    return server
