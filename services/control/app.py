"""The process ``nereid control``."""

import asyncio
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Final

import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services.control.catalog import Catalog
from services.control.command_line import ControlSettings, parse
from services.control.doors import server_of
from services.control.ensemble_members import check_members
from services.control.kept_metrics import KeptMetrics
from services.control.live_settings import live_settings
from services.control.parts import Parts
from services.control.patience import patience
from services.control.placing import place_version
from services.control.reconciler import Reconciler
from services.control.response_store import ResponseStore
from services.control.state_checkpoints import StateCheckpoints
from services.control.statistics import Statistics
from services.control.store import NoStore, RedisStore, Store
from services.control.supervisor import Supervisor
from services.control.traffic_servicer import TrafficServicer
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
        parts = await _parts(self.settings)
        healths = health.aio.HealthServicer()  # type: ignore[attr-defined]
        server = server_of(parts)
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
        async with parts.at_work(), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(self._serve(parts.supervisor, parts.catalog))
            await self.stopping.wait()
            await healths.enter_graceful_shutdown()
            await server.stop(_STOP_GRACE_S)
            serving.cancel()
        await parts.close()
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


async def _parts(settings: ControlSettings) -> Parts:
    """Return the parts, with what an earlier process left in the store."""
    store = _store(settings.redis_url)
    supervisor = await _supervisor(store, settings)
    statistics = Statistics(
        store, supervisor.routers, MonotonicClock(), settings.metrics
    )
    supervisor.count_by(statistics.count)
    live = await live_settings(
        settings.live,
        supervisor,
        store,
        first_session=supervisor.reconciler.table.revision,
    )
    await TrafficServicer(supervisor, store, statistics).restore()
    return Parts(
        store=store,
        supervisor=supervisor,
        catalog=Catalog(supervisor, settings.catalog, MonotonicClock()),
        statistics=statistics,
        live=live,
        metrics=KeptMetrics(store),
        states=StateCheckpoints(store),
        responses=_responses(settings),
    )


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
