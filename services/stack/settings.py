"""What one stack is to do, read from its command line. Pure."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from services.core.cache_config import read_cache_config
from services.core.header_pattern import header_pattern
from services.core.logs import LogSettings
from services.core.rate_limits import is_rate_limited, resource_amounts
from services.core.restrictions import parse_restrictions
from services.stack.command_line import CommandLine, UsageError, Value
from services.stack.observation_flags import observation_flags
from services.stack.repository_flags import repository_flags

LOG_FORMATS = ("default", "iso8601")


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One public address.

    Attributes:
        name: What users call it: REST, gRPC or metrics.
        flag: The flag that chooses the port.
        host: The address to listen on.
        port: 1 to 65535.
    """

    name: str
    flag: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSettings:
    """All that the plan needs to know of the user's wishes.

    Attributes:
        model_repositories: Folders of models; never empty.
        rest: Where REST listens; None if it is switched off.
        grpc: Where gRPC listens; None if it is switched off.
        metrics: Where metrics listen; None if they are switched off.
        control_flags: Handed on to control as they are.
        worker_flags: Handed on to every worker as they are.
        router_flags: Handed on to the router as they are.
        http_max_input_bytes: The largest REST body; None leaves the default.
        exit_on_error: Whether a model that fails at the start ends the stack.
        exit_timeout_s: How long a stop waits for requests in flight.
        devices: The devices asked for by name; empty means: look for them.
        state_directory: Of the embedded store; empty means the user's own.
        quickstart: Whether to send the demo's first inferences.
        log: What every process writes.
        log_file: Where it is written; empty means stderr.
    """

    model_repositories: tuple[str, ...]
    rest: Door | None
    grpc: Door | None
    metrics: Door | None
    control_flags: tuple[str, ...] = ()
    worker_flags: tuple[str, ...] = ()
    router_flags: tuple[str, ...] = ()
    http_max_input_bytes: int | None = None
    exit_on_error: bool = True
    exit_timeout_s: int = 30
    devices: tuple[str, ...] = ()
    state_directory: str = ""
    quickstart: bool = False
    log: LogSettings = LogSettings()  # noqa: RUF009  frozen
    log_file: str = ""

    @property
    def doors(self) -> tuple[Door, ...]:
        """The public addresses that are switched on."""
        return tuple(door for door in (self.rest, self.grpc, self.metrics) if door)


def settings_of(line: CommandLine) -> StackSettings:
    """Check the values against each other and fill the defaults.

    Raises:
        UsageError: a value is missing or impossible.
    """
    values = line.values
    repositories = tuple(str(value) for value in values.get("model-repository", ()))
    if not repositories:
        raise UsageError("--model-repository is missing: name a folder of models")
    rest = _door(values, name="REST", protocol="http", host="0.0.0.0", port=8000)  # noqa: S104  Triton's default
    return StackSettings(
        model_repositories=repositories,
        rest=rest if _last(values, "allow-http", default=True) else None,
        grpc=_door(values, name="gRPC", protocol="grpc", host="0.0.0.0", port=8001)  # noqa: S104  Triton's default
        if _last(values, "allow-grpc", default=True)
        else None,
        metrics=_door(
            values, name="metrics", protocol="metrics", host=rest.host, port=8002
        )
        if _last(values, "allow-metrics", default=True)
        else None,
        control_flags=(
            *repository_flags(values),
            *_metrics_flags(values),
            *observation_flags(values),
            *_cache_flags(values),
        ),
        worker_flags=_worker_flags(values),
        router_flags=_router_flags(values),
        http_max_input_bytes=_integer_or_none(values, "http-max-input-size"),
        exit_on_error=bool(_last(values, "exit-on-error", default=True)),
        exit_timeout_s=_integer_or_none(values, "exit-timeout-secs", default=30) or 0,
        devices=_devices(values),
        state_directory=str(_last(values, "state-dir", default="")),
        quickstart=bool(_last(values, "quickstart", default=False)),
        log=_log_settings(values),
        log_file=str(_last(values, "log-file", default="")),
    )


Values = Mapping[str, tuple[Value, ...]]
T = TypeVar("T")


def _last(values: Values, name: str, *, default: Value) -> Value:
    return values.get(name, (default,))[-1]


def _integer_or_none(
    values: Values, name: str, *, default: int | None = None
) -> int | None:
    """Return the number that ``name`` was given.

    Raises:
        UsageError: it is negative.
    """
    if name not in values:
        return default
    number = int(values[name][-1])
    if number < 0:
        raise UsageError(f"--{name} must not be negative, got {number}")
    return number


def _door(values: Values, *, name: str, protocol: str, host: str, port: int) -> Door:
    """Return the address that ``--PROTOCOL-address`` and ``--PROTOCOL-port`` give."""
    flag = f"{protocol}-port"
    chosen = int(_last(values, flag, default=port))
    if not 0 < chosen < 1 << 16:
        raise UsageError(f"--{flag} must be 1 to 65535, got {chosen}")
    address = str(_last(values, f"{protocol}-address", default=host))
    return Door(name=name, flag=f"--{flag}", host=address, port=chosen)


def _metrics_flags(values: Values) -> tuple[str, ...]:
    """Return what control reads of the metrics."""
    flags = [f"--metrics-config={value}" for value in values.get("metrics-config", ())]
    flags += [
        f"--{name}=false"
        for name in ("allow-cpu-metrics", "allow-gpu-metrics", "allow-statistics")
        if not _last(values, name, default=True)
    ]
    if "metrics-interval-ms" in values:
        flags.append(f"--metrics-interval-ms={values['metrics-interval-ms'][-1]}")
    return tuple(flags)


def _check(name: str, parse: Callable[[T], object], value: T) -> None:
    try:
        parse(value)
    except ValueError as error:
        raise UsageError(f"--{name}: {error}") from None


def _router_flags(values: Values) -> tuple[str, ...]:
    """Return what the router reads itself.

    Raises:
        UsageError: a pattern, a restriction, a cache or a bound that is none.
    """
    flags = []
    for name in ("http-header-forward-pattern", "grpc-header-forward-pattern"):
        pattern = str(_last(values, name, default=""))
        if pattern:
            _check(name, header_pattern, pattern)
            flags.append(f"--{name}={pattern}")
    for name in ("http-restricted-api", "grpc-restricted-protocol"):
        restrictions = [str(value) for value in values.get(name, ())]
        _check(name, parse_restrictions, restrictions)
        flags += [f"--{name}={restriction}" for restriction in restrictions]
    flags += _cache_flags(values)
    if _last(values, "allow-client-shm", default=False):
        flags.append("--allow-client-shm=true")
    if not _last(values, "allow-statistics", default=True):
        flags.append("--allow-statistics=false")
    return (*flags, *_queue_flags(values))


def _cache_flags(values: Values) -> list[str]:
    """Return where responses are kept, for routers and control.

    Raises:
        UsageError: no cache, or no size.
    """
    caches = [str(value) for value in values.get("cache-config", ())]
    if "response-cache-byte-size" in values:
        size = _integer_or_none(values, "response-cache-byte-size")
        caches += [f"local,size={size}"] if size else []
    _check("cache-config", read_cache_config, caches)
    return [f"--cache-config={cache}" for cache in caches]


def _queue_flags(values: Values) -> tuple[str, ...]:
    """Return what bounds the router's queues.

    Raises:
        UsageError: no time, or no size.
    """
    flags = []
    if "no-worker-timeout" in values:
        seconds = float(values["no-worker-timeout"][-1])
        if not (math.isfinite(seconds) and seconds >= 0):
            raise UsageError(f"--no-worker-timeout must be from 0 on, got {seconds}")
        flags.append(f"--no-worker-timeout={seconds}")
    size = _integer_or_none(values, "max-queue-bytes")
    if size is not None:
        flags.append(f"--max-queue-bytes={size}")
    return tuple(flags)


def _worker_flags(values: Values) -> tuple[str, ...]:
    """Return what every worker reads itself.

    Raises:
        UsageError: no number, no mode or no amount.
    """
    flags = []
    count = _integer_or_none(values, "model-load-thread-count")
    if count is not None:
        flags.append(f"--model-load-thread-count={count}")
    if "rate-limit" in values:
        mode = str(values["rate-limit"][-1])
        _check("rate-limit", is_rate_limited, mode)
        flags.append(f"--rate-limit={mode}")
    amounts = [str(value) for value in values.get("rate-limit-resource", ())]
    _check("rate-limit-resource", resource_amounts, amounts)
    return (*flags, *(f"--rate-limit-resource={amount}" for amount in amounts))


def _devices(values: Values) -> tuple[str, ...]:
    devices = tuple(str(value) for value in values.get("device", ()))
    for device in devices:
        kind, _, index = device.partition(":")
        if device != "cpu" and not (kind == "cuda" and index.isdigit()):
            raise UsageError(f"--device must be cpu or cuda:N, not '{device}'")
    return devices


def _log_settings(values: Values) -> LogSettings:
    form = str(_last(values, "log-format", default="default")).lower()
    if form not in LOG_FORMATS:
        raise UsageError(f"--log-format must be default or ISO8601, not '{form}'")
    return LogSettings(
        verbose=_integer_or_none(values, "log-verbose", default=0) or 0,
        info=bool(_last(values, "log-info", default=True)),
        warning=bool(_last(values, "log-warning", default=True)),
        error=bool(_last(values, "log-error", default=True)),
        iso8601=form == "iso8601",
    )
