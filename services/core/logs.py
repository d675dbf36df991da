"""Log lines to stderr, through structlog, in Triton's line format.

    I0520 20:03:25.829575 3355 router/app.py:31] "listening" port=8001

The message and every text value are JSON, so nobody can forge a line by sending a
newline; a traceback is indented for the same reason. A process calls ``configure``
once at its start, and again when a client changes the log settings. Modules log with
``structlog.get_logger()``.
"""

import contextlib
import datetime as dt
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TextIO, cast

import structlog
from structlog.processors import CallsiteParameter, CallsiteParameterAdder
from structlog.typing import EventDict, WrappedLogger

from services.core.flags import parse_bool

LETTERS: Final[Mapping[str, str]] = {
    "debug": "V",
    "info": "I",
    "warning": "W",
    "error": "E",
    "exception": "E",
    "critical": "E",
}
SITE_KEYS: Final = ("pathname", "lineno")
VARIABLE_PREFIX: Final = "NEREID_LOG_"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Which lines are written, and how: Triton's log extension.

    Attributes:
        verbose: Debug lines are written at 1 and above.
        info: Whether informational lines are written.
        warning: Whether warnings are written.
        error: Whether errors are written.
        iso8601: ``2024-05-20T20:03:25Z 3355 …`` in place of ``I0520 20:03:25 …``.
    """

    verbose: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    iso8601: bool = False

    def writes(self, level: str) -> bool:
        """Tell whether a line of ``level`` (structlog's word for it) is written."""
        return {
            "debug": self.verbose > 0,
            "info": self.info,
            "warning": self.warning,
        }.get(level, self.error)

    def to_environment(self) -> dict[str, str]:
        """Return the variables by which a child process learns these settings."""
        return {
            f"{VARIABLE_PREFIX}VERBOSE": str(self.verbose),
            f"{VARIABLE_PREFIX}INFO": str(self.info).lower(),
            f"{VARIABLE_PREFIX}WARNING": str(self.warning).lower(),
            f"{VARIABLE_PREFIX}ERROR": str(self.error).lower(),
            f"{VARIABLE_PREFIX}ISO8601": str(self.iso8601).lower(),
        }


def settings_from(environment: Mapping[str, str], *, verbose: int = 0) -> LogSettings:
    """Return the settings that ``to_environment`` wrote; absent ones are defaults.

    Args:
        environment: The process's environment.
        verbose: The process's own ``--log-verbose``; the higher of both holds.

    Raises:
        ValueError: a variable has an impossible value.
    """

    def switch(name: str, default: str) -> bool:
        return parse_bool(environment.get(VARIABLE_PREFIX + name, default))

    inherited = int(environment.get(f"{VARIABLE_PREFIX}VERBOSE", "0"))
    return LogSettings(
        verbose=max(verbose, inherited),
        info=switch("INFO", "true"),
        warning=switch("WARNING", "true"),
        error=switch("ERROR", "true"),
        iso8601=switch("ISO8601", "false"),
    )


def configure(*, verbose: int = 0, settings: LogSettings | None = None) -> None:
    """Send this process's log to stderr.

    Args:
        verbose: The process's ``--log-verbose``.
        settings: All of them; by default those that the environment holds.
    """
    chosen = settings or settings_from(os.environ, verbose=verbose)
    structlog.configure(
        processors=[
            _filter(chosen),
            structlog.contextvars.merge_contextvars,
            CallsiteParameterAdder(
                {CallsiteParameter.PATHNAME, CallsiteParameter.LINENO}
            ),
            _take_exception,
            structlog.processors.format_exc_info,
            _Renderer(settings=chosen),
        ],
        wrapper_class=structlog.BoundLogger,
        logger_factory=structlog.PrintLoggerFactory(file=cast("TextIO", _Stderr())),
        cache_logger_on_first_use=False,
    )


def format_line(
    settings: LogSettings,
    *,
    level: str,
    at: dt.datetime,
    process_id: int,
    event: Mapping[str, Any],
) -> str:
    """Return one line, and indented ones where there is a traceback.

    Args:
        settings: Says which of the two time formats to use.
        level: structlog's word for the level.
        at: The time, in UTC.
        process_id: The number that the line shows.
        event: ``event`` is the message; ``pathname`` and ``lineno`` say where it
            was logged; ``exception`` is a traceback; the rest are fields.
    """
    letter = LETTERS.get(level, "I")
    site = f"{_short_path(event.get('pathname', '?'))}:{event.get('lineno', 0)}"
    if settings.iso8601:
        time = at.strftime("%Y-%m-%dT%H:%M:%SZ")
        head = f"{time} {process_id} {letter} {site}]"
    else:
        time = at.strftime("%m%d %H:%M:%S.%f")
        head = f"{letter}{time} {process_id} {site}]"
    hidden = {"event", "exception", *SITE_KEYS}
    fields = [
        f"{key}={_value(value)}" for key, value in event.items() if key not in hidden
    ]
    line = " ".join((head, json.dumps(str(event.get("event", ""))), *fields))
    exception = event.get("exception", "")
    return line + "".join(f"\n    {text}" for text in str(exception).splitlines())


def _value(value: object) -> str:
    """Render a field: numbers bare, everything else as JSON text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(str(value))


def _short_path(path: str) -> str:
    """Return ``router/app.py`` of ``/…/services/router/app.py``."""
    return "/".join(path.rsplit("/", maxsplit=2)[-2:])


class _Stderr:
    """stderr as it is now; a reader that has gone stops no server."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Renderer:
    """The last structlog processor: stamps the line and writes it out."""

    settings: LogSettings

    def __call__(
        self, _logger: WrappedLogger, level: str, event: EventDict
    ) -> str | bytes:
        return format_line(
            self.settings,
            level=level,
            at=dt.datetime.now(tz=dt.UTC),
            process_id=os.getpid(),
            event=event,
        )


def _take_exception(_logger: WrappedLogger, level: str, event: EventDict) -> EventDict:
    """Make ``log.exception`` show the exception that is being handled."""
    if level == "exception":
        event.setdefault("exc_info", True)
    return event


def _filter(settings: LogSettings) -> structlog.typing.Processor:
    """Return the first structlog processor: drops lines that are not wanted."""

    def drop_unwanted(
        _logger: WrappedLogger, level: str, event: EventDict
    ) -> EventDict:
        if not settings.writes(level):
            raise structlog.DropEvent
        return event

    return drop_unwanted
