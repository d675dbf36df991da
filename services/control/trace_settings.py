"""Which requests are traced: settings of all models, and of single ones. Pure.

A model has the global settings until it is given its own; what it is not given
falls back to the global one, and what is not set globally to the start-up's. Every
change begins a new *session* of its scope: the requests that one setting sampled,
which share a countdown and a buffer.

Source: Triton's trace extension; the texts are its servers'.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from services.core.errors import InvalidRequestError, UnsupportedError

UNLIMITED: Final = -1

TRITON_MODE: Final = "triton"
OPENTELEMETRY_MODE: Final = "opentelemetry"


class TraceLevel(enum.Flag):
    """What is written of a traced request; the names are the protocol's."""

    OFF = 0
    TIMESTAMPS = 1
    TENSORS = 2

    @property
    def names(self) -> tuple[str, ...]:
        """The level as the protocol lists it."""
        found = tuple(each.name for each in TraceLevel if each in self and each.name)
        return found or ("OFF",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceValues:
    """One complete setting.

    Attributes:
        level: What is written.
        rate: One of so many requests is traced, >= 1 to trace at all.
        count: How many more requests are traced; UNLIMITED, or 0 for no more.
        log_frequency: So many traces make a file of their own; 0 puts all in one.
    """

    level: TraceLevel = TraceLevel.OFF
    rate: int = 1000
    count: int = UNLIMITED
    log_frequency: int = 0


FIELDS: Final = ("level", "rate", "count", "log_frequency")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceChange:
    """What a client wants.

    Attributes:
        values: New values, by field of TraceValues.
        cleared: Fields that fall back from now on.
    """

    values: Mapping[str, TraceLevel | int] = field(default_factory=dict)
    cleared: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceScope:
    """The settings of all models, or of one.

    Attributes:
        values: In force.
        specified: The fields that do not fall back.
        session: Number of the session that these values began.
    """

    values: TraceValues
    specified: frozenset[str] = frozenset()
    session: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """All settings there are.

    Attributes:
        start: What the command line said.
        mode: ``triton`` or ``opentelemetry``.
        file: Where traces are written; empty if that was not said.
        options: What else the command line said of the mode; shown to clients.
        overall: The global settings.
        models: Of the models that have their own.
        last_session: The highest session number given.
    """

    start: TraceValues
    mode: str = TRITON_MODE
    file: str = ""
    options: tuple[tuple[str, str], ...] = ()
    overall: TraceScope
    models: Mapping[str, TraceScope] = field(default_factory=dict)
    last_session: int = 0

    def scope_of(self, model: str) -> TraceScope:
        """Return what holds for ``model``; "" is all models."""
        return self.models.get(model, self.overall)

    def scopes(self) -> Iterable[TraceScope]:
        """Return every scope there is."""
        return (self.overall, *self.models.values())

    def is_active(self, values: TraceValues) -> bool:
        """Tell whether requests are traced by ``values``."""
        off = values.level is TraceLevel.OFF or values.count == 0
        return not off and not self._problem(values)

    def updated(self, model: str, change: TraceChange) -> "TraceSettings":
        """Return the settings after a change.

        Args:
            model: Whose; "" for all models.
            change: What a client wants.

        Raises:
            InvalidRequestError: nothing could be traced by the new settings.
            UnsupportedError: the mode lets nothing be changed.
        """
        if self.mode == OPENTELEMETRY_MODE:
            raise UnsupportedError(
                "trace settings can not be updated in opentelemetry mode"
            )
        after = self.with_scope(model, change)
        if not model:
            for name in self.models:
                after = after.with_scope(name, TraceChange())
        return after

    def counted(self, session: int) -> "TraceSettings":
        """Return the settings after one more request of ``session`` was sampled."""
        if self.overall.session == session:
            return replace(self, overall=_counted(self.overall))
        return replace(
            self,
            models={
                name: _counted(scope) if scope.session == session else scope
                for name, scope in self.models.items()
            },
        )

    def with_scope(self, model: str, change: TraceChange) -> "TraceSettings":
        """Return the settings after a change that concerns one scope alone."""
        current = self.models.get(model) if model else self.overall
        fallback = self.overall.values if model else self.start
        before = current.specified if current else frozenset()
        specified = (before | change.values.keys()) - change.cleared
        chosen = {
            name: change.values.get(name, getattr(current and current.values, name, 0))
            for name in specified
        }
        values = replace(fallback, **chosen)  # type: ignore[arg-type]  # by field
        if model and not specified:
            return replace(
                self, models={n: s for n, s in self.models.items() if n != model}
            )
        self._check(values)
        number = self.last_session + 1
        scope = TraceScope(values=values, specified=specified, session=number)
        if model:
            models = {**self.models, model: scope}
            return replace(self, models=models, last_session=number)
        return replace(self, overall=scope, last_session=number)

    def _check(self, values: TraceValues) -> None:
        if values.level is not TraceLevel.OFF and not self.is_active(values):
            # A count of 0 has no words of its own in Triton either.
            raise InvalidRequestError(
                f"Attempting to set invalid trace setting :{self._problem(values)}"
            )

    def _problem(self, values: TraceValues) -> str:
        if values.rate == 0:
            return "sample rate must be non-zero"
        if self.mode == TRITON_MODE and not self.file:
            return "trace file name is not given"
        return ""


def _counted(scope: TraceScope) -> TraceScope:
    values = scope.values
    if values.count <= 0:
        return scope
    return replace(scope, values=replace(values, count=values.count - 1))


def initial(
    values: TraceValues,
    *,
    mode: str = TRITON_MODE,
    file: str = "",
    options: tuple[tuple[str, str], ...] = (),
    first_session: int = 1,
) -> TraceSettings:
    """Return the settings that the command line asks for.

    Args:
        values: What it said, or the defaults.
        mode: ``triton`` or ``opentelemetry``.
        file: Where traces are written.
        options: What else it said of the mode.
        first_session: Higher than any number that an earlier process gave.
    """
    return TraceSettings(
        start=values,
        mode=mode,
        file=file,
        options=options,
        overall=TraceScope(values=values, session=first_session),
        last_session=first_session,
    )
