"""``--trace-config``: ``SETTING=VALUE`` of all modes, ``MODE,SETTING=VALUE`` of one.

Pure. Source: the option parser of the ``tritonserver`` command.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from services.control.trace_setting_values import read_number
from services.control.trace_settings import (
    OPENTELEMETRY_MODE,
    TRITON_MODE,
    TraceLevel,
    TraceValues,
)
from services.core.errors import InvalidRequestError

MODES: Final = (TRITON_MODE, OPENTELEMETRY_MODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """What the command line says of tracing.

    Attributes:
        values: The settings that clients may change.
        mode: One of MODES.
        file: Of Triton's mode; empty if none was named.
        options: Of the OpenTelemetry mode, by name, in the order given.
    """

    values: TraceValues = field(default_factory=TraceValues)
    mode: str = TRITON_MODE
    file: str = ""
    options: tuple[tuple[str, str], ...] = ()


def read(arguments: Iterable[str]) -> TraceConfig:
    """Return what all ``--trace-config`` flags say together.

    Raises:
        ValueError: one makes no sense; the message names it.
    """
    config = TraceConfig()
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals:
            raise ValueError(
                "--trace-config wants <setting>=<value> or"
                f" <mode>,<setting>=<value>, not '{argument}'"
            )
        mode, comma, setting = name.partition(",")
        if comma and mode not in MODES:
            raise ValueError(f"--trace-config: there is no mode '{mode}'")
        try:
            config = (
                _with_option(config, mode, setting, value)
                if comma
                else _with_setting(config, name, value)
            )
        except InvalidRequestError as error:
            raise ValueError(f"--trace-config={argument}: {error}") from None
    return config


def _with_setting(config: TraceConfig, name: str, value: str) -> TraceConfig:
    match name:
        case "mode":
            if value not in MODES:
                raise ValueError(f"--trace-config: there is no mode '{value}'")
            return replace(config, mode=value)
        case "level":
            level = _level(config.values.level, value)
            return replace(config, values=replace(config.values, level=level))
        case "rate":
            rate = read_number("trace_rate", value)
            return replace(config, values=replace(config.values, rate=rate))
        case "count":
            count = read_number("trace_count", value)
            return replace(config, values=replace(config.values, count=count))
        case _:
            raise ValueError(f"--trace-config: there is no setting '{name}'")


def _level(before: TraceLevel, name: str) -> TraceLevel:
    """Return what a further ``level=`` makes of those before it."""
    if name not in TraceLevel.__members__:
        raise ValueError(
            f"--trace-config: level is OFF, TIMESTAMPS or TENSORS, not '{name}'"
        )
    return before | TraceLevel[name] if name != "OFF" else TraceLevel.OFF


def _with_option(config: TraceConfig, mode: str, name: str, value: str) -> TraceConfig:
    if mode == OPENTELEMETRY_MODE:
        return replace(config, options=(*config.options, (name, value)))
    match name:
        case "file":
            return replace(config, file=value)
        case "log-frequency":
            number = read_number("log_frequency", value)
            return replace(config, values=replace(config.values, log_frequency=number))
        case _:
            raise ValueError(f"--trace-config: mode {mode} has no setting '{name}'")
