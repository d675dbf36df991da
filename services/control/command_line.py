"""The flags of ``nereid control``."""

import argparse
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from services.control import otel_export, otel_options, trace_config
from services.control.catalog_settings import (
    EVERY_MODEL,
    CatalogSettings,
    ControlMode,
)
from services.control.live_settings import StartSettings
from services.control.metrics_settings import MetricsSettings, parse_metrics_config
from services.control.preparation import CompletionSettings
from services.control.remote_repository import RemoteRepositories
from services.control.trace_config import TraceConfig
from services.control.trace_settings import OPENTELEMETRY_MODE
from services.core import flags, logs
from services.core.byte_size import parse_byte_size
from services.core.cache_config import RedisCache, read_cache_config

_MAX_BATCH_SIZE: Final = "default-max-batch-size"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """What the command line says.

    Attributes:
        listen: gRPC address.
        redis_url: "": remember nothing.
        exit_on_error: End with status 1 if a model fails to load at the start.
        strict_readiness: Ready only if every model that should be is.
        load_retries: How often a load that failed is tried again.
        expected_workers: That are being started with us; models wait for them.
        log_verbose: Debug lines are written at 1 and above.
        live: What clients may change later.
        catalog: How the repositories are served.
        metrics: What the Prometheus page shows.
        responses: The response cache that routers share; None if they share none.
    """

    listen: str
    redis_url: str
    exit_on_error: bool
    strict_readiness: bool
    load_retries: int
    expected_workers: int
    log_verbose: int
    live: StartSettings
    catalog: CatalogSettings
    metrics: MetricsSettings
    responses: RedisCache | None = None


def parse(argv: list[str]) -> ControlSettings:
    """Return what the command line says; ends the process if it makes no sense."""
    parser = _parser()
    options = parser.parse_args(argv)
    if EVERY_MODEL in options.load_model and len(set(options.load_model)) > 1:
        parser.error(
            f"--load-model={EVERY_MODEL} means every model: name no other beside it"
        )
    try:
        sizes = max_batch_sizes(options.backend_config)
        remotes = RemoteRepositories(
            options.model_repository, os.environ, options.repository_cache_directory
        )
        budget = options.model_memory_budget
        budget_bytes = parse_byte_size(budget) if budget else 0
        metrics = parse_metrics_config(
            options.metrics_config,
            has_cpu=options.allow_cpu_metrics,
            has_gpu=options.allow_gpu_metrics,
            interval_s=options.metrics_interval_ms / 1000,
            has_statistics=options.allow_statistics,
        )
        responses = _responses(options.cache_config, options.redis_url)
        live = StartSettings(
            log=logs.settings_from(os.environ, verbose=options.log_verbose),
            log_file=options.log_file,
            trace=_trace_config(options.trace_config),
        )
    except ValueError as error:
        parser.error(str(error))
    return ControlSettings(
        listen=options.listen,
        redis_url=options.redis_url,
        exit_on_error=options.exit_on_error,
        strict_readiness=options.strict_readiness,
        load_retries=options.model_load_retry_count,
        expected_workers=options.expected_workers,
        log_verbose=options.log_verbose,
        live=live,
        metrics=metrics,
        responses=responses,
        catalog=CatalogSettings(
            roots=remotes.folders,
            remotes=remotes,
            mode=ControlMode(options.model_control_mode),
            start_up_models=tuple(options.load_model),
            memory_budget_bytes=budget_bytes,
            completion=CompletionSettings(
                auto_complete=not options.disable_auto_complete_config,
                max_batch_sizes=sizes,
            ),
            config_name=options.model_config_name,
            poll_interval_s=options.repository_poll_secs,
            override_root=options.override_directory,
        ),
    )


def _responses(arguments: Iterable[str], redis_url: str) -> RedisCache | None:
    """Return the response cache that routers share, by ``--cache-config``.

    Raises:
        ValueError: it makes no sense, or there is no Redis.
    """
    cache = read_cache_config(arguments).redis
    if cache is not None and not (cache.connection or redis_url):
        raise ValueError("--cache-config: the cache 'redis' needs a host and a port")
    return cache


def _trace_config(arguments: Iterable[str]) -> TraceConfig:
    """Return what the ``--trace-config`` flags say.

    Raises:
        ValueError: they make no sense, or want what is not installed.
    """
    config = trace_config.read(arguments)
    if config.mode == OPENTELEMETRY_MODE:
        otel_options.read_options(config.options)
        if not otel_export.is_installed():
            raise ValueError(
                "--trace-config: mode opentelemetry needs the extra 'otel':"
                " pip install nereid[otel]"
            )
    return config


def max_batch_sizes(settings: Iterable[str]) -> dict[str, int]:
    """Return the default batch sizes that --backend-config flags give, by backend.

    Args:
        settings: ``BACKEND,KEY=VALUE``, or ``KEY=VALUE`` for all backends ("").

    Raises:
        ValueError: a setting has no ``=``, or a batch size is no number.
    """
    sizes = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(
                f"--backend-config wants <backend>,<setting>=<value>, not '{setting}'"
            )
        backend, _, name = key.rpartition(",")
        if name != _MAX_BATCH_SIZE:
            continue
        if not value.isdecimal():
            raise ValueError(f"{_MAX_BATCH_SIZE} must be a number, not '{value}'")
        sizes[backend] = int(value)
    return sizes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nereid control",
        description="Owns the model repository, placement and the models' states.",
    )
    add = parser.add_argument
    add(
        "--model-repository",
        action="append",
        required=True,
        metavar="DIR",
        help="a folder of models, or s3://, gs://, as://; may be repeated",
    )
    add("--listen", required=True, metavar="TARGET", help="unix:/path or host:port")
    add(
        "--redis-url",
        default=os.environ.get("REDIS_URL", ""),
        metavar="URL",
        help="where states are kept (default: $REDIS_URL; empty: nowhere)",
    )
    add(
        "--cache-config",
        action="append",
        default=[],
        metavar="CACHE,KEY=VALUE",
        help="redis,...: where routers share responses (default: nowhere)",
    )
    add(
        "--model-control-mode",
        choices=[mode.value for mode in ControlMode],
        default=ControlMode.NONE.value,
        help="who decides which models are loaded (default: none)",
    )
    add(
        "--load-model",
        action="append",
        default=[],
        metavar="MODEL",
        help="load it at the start in explicit mode; * loads all; may be repeated",
    )
    add(
        "--model-memory-budget",
        default="",
        metavar="SIZE",
        help="how much models may take in on-demand mode, such as 2GiB",
    )
    add(
        "--repository-poll-secs",
        type=float,
        default=15.0,
        metavar="N",
        help="how often poll mode looks (default: 15)",
    )
    add(
        "--backend-config",
        action="append",
        default=[],
        metavar="BACKEND,KEY=VALUE",
        help="a backend's setting; may be repeated",
    )
    add(
        "--model-config-name",
        default="",
        metavar="NAME",
        help="configure models by configs/NAME.pbtxt where they have it",
    )
    add(
        "--model-load-retry-count",
        type=int,
        default=0,
        metavar="N",
        help="how often a load that failed is tried again (default: 0)",
    )
    add(
        "--expected-workers",
        type=int,
        default=0,
        metavar="N",
        help="how many workers to wait for, for a while, before models are placed",
    )
    add(
        "--override-directory",
        default="",
        metavar="DIR",
        help="where files of load requests are written, for workers to read"
        " (default: a temporary folder)",
    )
    add(
        "--repository-cache-directory",
        default="",
        metavar="DIR",
        help="where copies of remote repositories go, for workers to read"
        " (default: a temporary folder)",
    )
    add("--log-verbose", type=int, default=0, metavar="N", help="verbosity; 0 is off")
    _add_metrics(parser)
    add(
        "--log-file",
        default="",
        metavar="PATH",
        help="where the log is written by who reads stderr; for clients who ask",
    )
    add(
        "--trace-config",
        action="append",
        default=[],
        metavar="[MODE,]SETTING=VALUE",
        help="which requests are traced, and where to; may be repeated",
    )
    flags.add_bool(
        parser,
        "--exit-on-error",
        default=True,
        text="end if a model fails to load at the start",
    )
    flags.add_bool(
        parser,
        "--strict-readiness",
        default=True,
        text="ready only if every model that should be is",
    )
    flags.add_bool(
        parser,
        "--disable-auto-complete-config",
        default=False,
        text="do not ask model files for what config.pbtxt leaves open",
    )
    return parser


def _add_metrics(parser: argparse.ArgumentParser) -> None:
    flags.add_bool(
        parser,
        "--allow-statistics",
        default=True,
        text="tell what routers count; give them the same flag",
    )
    parser.add_argument(
        "--metrics-config",
        action="append",
        default=[],
        metavar="SETTING=VALUE",
        help="counter_latencies, histogram_latencies, summary_latencies or "
        "summary_quantiles; may be repeated",
    )
    parser.add_argument(
        "--metrics-interval-ms",
        type=float,
        default=2000.0,
        metavar="X",
        help="how often CPU and GPU are looked at, at most (default: 2000)",
    )
    for device in ("cpu", "gpu"):
        flags.add_bool(
            parser,
            f"--allow-{device}-metrics",
            default=True,
            text=f"show the load of the {device.upper()}",
        )
