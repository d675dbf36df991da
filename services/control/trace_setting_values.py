"""Trace settings as the protocol writes them: lists of strings. Pure.

Source: Triton's trace extension; the texts are its gRPC server's.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from services.control.trace_settings import (
    TRITON_MODE,
    UNLIMITED,
    TraceChange,
    TraceLevel,
    TraceSettings,
)
from services.core.errors import InvalidRequestError, UnsupportedError

_MAX_INT32: Final = 2**31 - 1
_MAX_UINT32: Final = 2**32 - 1
_NUMBER: Final = re.compile(r"\s*([+-]?\d+)")
_NUMBERS: Final = {
    "trace_rate": "rate",
    "trace_count": "count",
    "log_frequency": "log_frequency",
}


def change_of(settings: Mapping[str, Sequence[str]]) -> TraceChange:
    """Read a TraceSettingRequest: no value clears; unknown names are nothing.

    Raises:
        UnsupportedError: the file is named.
        InvalidRequestError: a value makes no sense, or there are too many.
    """
    if "trace_file" in settings:
        raise UnsupportedError(
            "trace file location can not be updated through network protocol"
        )
    values: dict[str, TraceLevel | int] = {}
    cleared = set()
    levels = settings.get("trace_level")
    if levels is not None:
        level = read_level(levels)
        if not levels:
            cleared.add("level")
        elif level is not None:
            values["level"] = level
    for name, key in _NUMBERS.items():
        given = settings.get(name)
        if given is None:
            continue
        if not given:
            cleared.add(key)
        elif len(given) > 1:
            raise InvalidRequestError(f"expect only 1 value for '{name}'")
        else:
            values[key] = read_number(name, given[0])
    return TraceChange(values=values, cleared=frozenset(cleared))


def read_level(names: Sequence[str]) -> TraceLevel | None:
    """Return the level that ``names`` make together; None if they name none.

    Raises:
        InvalidRequestError: OFF is not alone.
    """
    level = TraceLevel.OFF
    for name in names:
        if name == "OFF":
            if len(names) > 1:
                raise InvalidRequestError(
                    "Expect only one trace level 'OFF' is specified"
                )
            return TraceLevel.OFF
        if name in {"TIMESTAMPS", "TENSORS"}:
            level |= TraceLevel[name]
    return level if level is not TraceLevel.OFF else None


def read_number(name: str, text: str) -> int:
    """Return the number at the beginning of ``text``, which is all that Triton reads.

    Raises:
        InvalidRequestError: there is none, or it is out of range. Triton lets
            negative rates wrap around; they are refused here.
    """
    found = _NUMBER.match(text)
    if found is None:
        raise InvalidRequestError(f"Unable to parse '{name}', got: {text}")
    number = int(found[1])
    least, most, announced = (
        (UNLIMITED, _MAX_INT32, _MAX_INT32)
        if name == "trace_count"
        else (0, _MAX_INT32, _MAX_UINT32)
    )
    if name == "trace_count" and -_MAX_INT32 <= number < least:
        raise InvalidRequestError(
            f"Unable to parse '{name}'. Expecting value >= {least}, got: {text}"
        )
    if not least <= number <= most:
        raise InvalidRequestError(
            f"Unable to parse '{name}', value is out of range"
            f" [ {least}, {announced} ], got: {text}"
        )
    return number


def answer(settings: TraceSettings, model: str) -> dict[str, list[str]]:
    """Return what holds for ``model``, by the protocol's names."""
    values = settings.scope_of(model).values
    shown = {
        "trace_level": list(values.level.names),
        "trace_rate": [str(values.rate)],
        "trace_count": [str(values.count)],
    }
    if settings.mode == TRITON_MODE:
        shown["log_frequency"] = [str(values.log_frequency)]
        shown["trace_file"] = [settings.file]
    shown["trace_mode"] = [settings.mode]
    return shown | {name: [value] for name, value in settings.options}
