"""What a client may change of the log, and the words for what it may not. Pure.

Source: Triton's logging extension; the texts are its gRPC server's.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Final

from services.core.errors import InvalidRequestError, UnsupportedError
from services.core.logs import LogSettings

ParameterValue = bool | int | str | None
"""A parameter as it came; None if it had no value."""

DEFAULT_FORMAT: Final = "default"
ISO_FORMAT: Final = "ISO8601"

_SWITCHES: Final = {
    "log_info": "info",
    "log_warning": "warning",
    "log_error": "error",
}
_MOST_VERBOSE: Final = 2**31 - 1


def updated(current: LogSettings, changes: Mapping[str, ParameterValue]) -> LogSettings:
    """Return ``current`` with the named settings changed; unknown names are nothing.

    Raises:
        UnsupportedError: the file is named.
        InvalidRequestError: a value is of the wrong kind; nothing is changed then.
    """
    if "log_file" in changes:
        raise UnsupportedError(
            "log file location can not be updated through network protocol"
        )
    for name, field in _SWITCHES.items():
        if name in changes:
            value = changes[name]
            if not isinstance(value, bool):
                raise InvalidRequestError(f"expect boolean for '{name}'")
            current = dataclasses.replace(current, **{field: value})
    if "log_verbose_level" in changes:
        level = changes["log_verbose_level"]
        if isinstance(level, bool) or not isinstance(level, int):
            raise InvalidRequestError("expect int32 for 'log_verbose_level'")
        current = dataclasses.replace(current, verbose=min(level, _MOST_VERBOSE))
    if "log_format" in changes:
        form = changes["log_format"]
        if not isinstance(form, str):
            raise InvalidRequestError("expect string for 'log_format'")
        if form not in {DEFAULT_FORMAT, ISO_FORMAT}:
            raise InvalidRequestError(f"invalid argument for log_format, got: {form}")
        current = dataclasses.replace(current, iso8601=form == ISO_FORMAT)
    return current


def answer(settings: LogSettings, file: str) -> dict[str, bool | int | str]:
    """Return all settings by the protocol's names.

    Args:
        settings: In force.
        file: Where the log is written; empty for stderr.
    """
    return {
        "log_file": file,
        "log_info": settings.info,
        "log_warning": settings.warning,
        "log_error": settings.error,
        "log_verbose_level": settings.verbose,
        "log_format": ISO_FORMAT if settings.iso8601 else DEFAULT_FORMAT,
    }


def to_text(start: LogSettings, settings: LogSettings) -> str:
    """Return settings as they are stored, with those of the command line."""
    return json.dumps([dataclasses.asdict(start), dataclasses.asdict(settings)])


def restored(start: LogSettings, text: str) -> LogSettings:
    """Return what an earlier process stored; ``start`` if it started otherwise.

    Raises:
        ValueError: ``text`` was not written by ``to_text``.
    """
    try:
        origin, settings = json.loads(text)
        if LogSettings(**origin) != start:
            return start
        return LogSettings(**settings)
    except TypeError as error:
        raise ValueError(f"no log settings: {error}") from error
