"""Which requests are traced. Pure.

Every router counts for itself and asks nobody: one of ``rate`` requests that it gets.
Control hears how far each has come, and moves what they have counted between them, so
that of all requests one of ``rate`` is sampled. The count is control's: with several
routers the last of it may be sampled by more than one, and control keeps the first that
come.

Source: Triton's trace extension.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_UNLIMITED: Final = -1
# W3C Trace Context: version, trace id, parent id, flags; the lowest flag is "sampled".
_TRACEPARENT_PARTS: Final = 4
_SAMPLED_FLAG: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceScope:
    """What holds for some models.

    Attributes:
        session: Control's number for these settings.
        rate: One of so many requests; 0: none.
        count: How many more at most; negative: any number.
        timestamps: Whether times are wanted.
        tensors: Whether the tensors are.
    """

    session: int
    rate: int = 0
    count: int = _UNLIMITED
    timestamps: bool = True
    tensors: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """What holds for all models.

    Attributes:
        overall: Of the models that have nothing of their own.
        models: Of the others.
        follows_callers: A request whose caller is traced is traced too, whatever
            the rate and the count, where times are wanted.
    """

    overall: TraceScope
    models: Mapping[str, TraceScope] = field(default_factory=dict)
    follows_callers: bool = False


@dataclass(slots=True)
class SampleCounter:
    """Counts the requests of one session.

    Attributes:
        scope: How they are sampled.
        until: The how-manieth of the next requests is picked; >= 1 if any is.
        left: How many more may be; negative: any number.
        moves: How often control has changed ``until`` since the settings came.
    """

    scope: TraceScope
    until: int
    left: int = _UNLIMITED
    moves: int = 0

    @property
    def progress(self) -> "SampleProgress":
        """How far it has come."""
        return SampleProgress(
            session=self.scope.session,
            counted=self.scope.rate - self.until,
            moves=self.moves,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleProgress:
    """How far a session has come on its way to the next sample.

    Attributes:
        session: Control's number for its settings.
        counted: Requests since the last sample, with those that control has moved.
        moves: How often it has.
    """

    session: int
    counted: int
    moves: int


class TraceSampler:
    """Counts requests, and picks some."""

    def __init__(self) -> None:
        """Begin with tracing off."""
        off = TraceScope(session=0)
        self._settings = TraceSettings(overall=off)
        self._counters: dict[int, SampleCounter] = {}
        self._told: dict[int, SampleProgress] = {}
        self.follow(self._settings)

    def follow(self, settings: TraceSettings) -> None:
        """Sample by ``settings``; a session that goes on keeps its place."""
        before, self._settings = self._counters, settings
        self._counters = {}
        self._told = {}
        for scope in (settings.overall, *settings.models.values()):
            known = before.get(scope.session)
            # What was sampled just now, control may not have counted yet.
            limits = [c for c in (scope.count, known.left if known else -1) if c >= 0]
            self._counters[scope.session] = SampleCounter(
                scope=scope,
                until=known.until if known else scope.rate,
                left=min(limits, default=_UNLIMITED),
            )

    @property
    def is_shared(self) -> bool:
        """Whether it matters how far other routers have come."""
        return any(each.scope.rate > 1 for each in self._counters.values())

    def progress(self) -> list[SampleProgress]:
        """Return how far sampling has come, where that has changed since last time."""
        news = [
            counter.progress
            for number, counter in self._counters.items()
            if counter.scope.rate > 1 and self._told.get(number) != counter.progress
        ]
        self._told |= {each.session: each for each in news}
        return news

    def move(self, session: int, by: int) -> None:
        """Count ``by`` requests more than came here, or fewer; control knows why."""
        counter = self._counters.get(session)
        if counter is not None:
            counter.until -= by
            counter.moves += 1

    @property
    def is_on(self) -> bool:
        """Whether any request could be picked."""
        scopes = (self._settings.overall, *self._settings.models.values())
        return any(map(self._picks_from, scopes))

    def is_on_for(self, model: str) -> bool:
        """Whether any request of ``model`` could be picked."""
        return self._picks_from(self._scope_of(model))

    @property
    def follows_callers(self) -> bool:
        """Whether the caller's own sampling is asked."""
        return self._settings.follows_callers

    def sample(self, model: str, traceparent: str = "") -> TraceScope | None:
        """Count one request; return how to trace it, None if it is not.

        Args:
            model: Whose request.
            traceparent: The caller's W3C trace context, where callers are followed.
        """
        counter = self.counter_of(model)
        scope = counter.scope
        if self._follows(scope) and is_sampled(traceparent):
            return scope
        if not scope.rate:
            return None
        counter.until -= 1
        if counter.until > 0:
            return None
        counter.until += scope.rate
        if counter.left == 0:
            return None
        if counter.left > 0:
            counter.left -= 1
        return scope

    def counter_of(self, model: str) -> SampleCounter:
        """Return what counts the requests of ``model`` by the present settings.

        Whoever takes one off ``until`` himself, down to 1, has counted a request.
        """
        return self._counters[self._scope_of(model).session]

    def _follows(self, scope: TraceScope) -> bool:
        return self._settings.follows_callers and scope.timestamps

    def _picks_from(self, scope: TraceScope) -> bool:
        return scope.rate > 0 or self._follows(scope)

    def _scope_of(self, model: str) -> TraceScope:
        return self._settings.models.get(model, self._settings.overall)


def is_sampled(traceparent: str) -> bool:
    """Tell whether a W3C ``traceparent`` says that its caller is traced."""
    parts = traceparent.split("-")
    if len(parts) < _TRACEPARENT_PARTS:
        return False
    try:
        return bool(int(parts[3], 16) & _SAMPLED_FLAG)
    except ValueError:
        return False
