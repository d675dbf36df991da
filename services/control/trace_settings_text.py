"""Trace settings as they are kept in the store. Pure."""

import json
from collections.abc import Sequence
from dataclasses import replace

from services.control.trace_settings import (
    FIELDS,
    TraceLevel,
    TraceScope,
    TraceSettings,
    TraceValues,
)


def to_text(settings: TraceSettings) -> str:
    """Return settings as they are stored."""
    return json.dumps(
        {
            "origin": _origin(settings),
            "overall": _scope_to_json(settings.overall),
            "models": {n: _scope_to_json(s) for n, s in settings.models.items()},
        }
    )


def restored(start: TraceSettings, text: str) -> TraceSettings:
    """Return what an earlier process stored, in new sessions.

    A changed command line means a fresh beginning: then it is ``start`` itself.

    Raises:
        ValueError: ``text`` was not written by ``to_text``.
    """
    try:
        stored = json.loads(text)
        if stored["origin"] != _origin(start):
            return start
        number = start.last_session + 1
        overall = _scope_from_json(stored["overall"], number)
        models = {}
        for name, scope in stored["models"].items():
            number += 1
            models[str(name)] = _scope_from_json(scope, number)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no trace settings: {error!r}") from error
    return replace(start, overall=overall, models=models, last_session=number)


def _origin(settings: TraceSettings) -> list[object]:
    options = [list(pair) for pair in settings.options]
    return [_values_to_json(settings.start), settings.mode, settings.file, options]


def _values_to_json(values: TraceValues) -> list[int]:
    return [values.level.value, values.rate, values.count, values.log_frequency]


def _scope_to_json(scope: TraceScope) -> list[object]:
    return [_values_to_json(scope.values), sorted(scope.specified)]


def _scope_from_json(stored: Sequence[Sequence[object]], session: int) -> TraceScope:
    level, rate, count, log_frequency = (int(str(each)) for each in stored[0])
    return TraceScope(
        values=TraceValues(
            level=TraceLevel(level),
            rate=rate,
            count=count,
            log_frequency=log_frequency,
        ),
        specified=frozenset(str(each) for each in stored[1]) & set(FIELDS),
        session=session,
    )
