"""What clients may change while the stack runs, and what is remembered of it."""

from dataclasses import dataclass, field
from typing import Final

import structlog

from services.control import log_settings, trace_settings_text
from services.control.log_switch import LogSwitch
from services.control.otel_export import OtelExporter
from services.control.otel_options import read_options
from services.control.router_links import RouterLink
from services.control.store import Store
from services.control.supervisor import Supervisor
from services.control.trace_config import TraceConfig
from services.control.trace_files import TraceFiles
from services.control.trace_settings import (
    OPENTELEMETRY_MODE,
    TraceSettings,
    initial,
)
from services.control.traces import Traces
from services.control.worker_links import WorkerLink
from services.core.logs import LogSettings

_log = structlog.get_logger(__name__)

_LOG: Final = "log"
_TRACE: Final = "trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSettings:
    """What the command line says.

    Attributes:
        log: Which lines are written.
        log_file: Where; empty for stderr.
        trace: What is traced.
    """

    log: LogSettings
    log_file: str = ""
    trace: TraceConfig = field(default_factory=TraceConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """The two extensions that change settings."""

    traces: Traces
    log: LogSwitch

    def greet_router(self, link: RouterLink) -> None:
        """Tell a router that has just attached."""
        self.log.greet_router(link)
        self.traces.greet(link)

    def greet_worker(self, link: WorkerLink) -> None:
        """Tell a worker that has just attached."""
        self.log.greet_worker(link)


async def live_settings(
    start: StartSettings, supervisor: Supervisor, store: Store, *, first_session: int
) -> LiveSettings:
    """Return the settings of the start, as clients have changed them since.

    Args:
        start: What the command line says. If it said something else when clients
            made their changes, those are void.
        supervisor: Has the streams to routers and workers.
        store: Remembers the changes.
        first_session: Higher than any number that an earlier process gave.
    """
    config = start.trace
    trace = initial(
        config.values,
        mode=config.mode,
        file=config.file,
        options=config.options,
        first_session=first_session,
    )
    stored = await store.restore_settings()
    return LiveSettings(
        traces=Traces(
            _restored_trace(trace, stored.get(_TRACE, "")),
            supervisor.routers,
            lambda settings: store.save_setting(
                _TRACE, trace_settings_text.to_text(settings)
            ),
            TraceFiles(config.file),
            _exporter(config),
        ),
        log=LogSwitch(
            start.log,
            supervisor.routers,
            supervisor.workers,
            lambda settings: store.save_setting(
                _LOG, log_settings.to_text(start.log, settings)
            ),
            file=start.log_file,
            restored=_restored_log(start.log, stored.get(_LOG, "")),
        ),
    )


def _exporter(config: TraceConfig) -> OtelExporter | None:
    if config.mode != OPENTELEMETRY_MODE:
        return None
    return OtelExporter(read_options(config.options))


def _restored_trace(start: TraceSettings, text: str) -> TraceSettings:
    try:
        return trace_settings_text.restored(start, text) if text else start
    except ValueError as error:
        _log.warning("stored trace settings are unreadable", reason=str(error))
        return start


def _restored_log(start: LogSettings, text: str) -> LogSettings:
    try:
        return log_settings.restored(start, text) if text else start
    except ValueError as error:
        _log.warning("stored log settings are unreadable", reason=str(error))
        return start
