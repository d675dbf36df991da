"""What becomes of finished traces: which go into which file, and when. Pure.

Source: Triton's trace extension. A file with an index is written whenever
``log_frequency`` traces are complete, and when the last of ``trace_count`` is; the
rest goes into the file without an index.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from services.control.trace_settings import TraceScope


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file of its own, with the next index."""

    records: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommonFile:
    """More records for the file without an index."""

    records: tuple[str, ...]


Page: TypeAlias = IndexedFile | CommonFile


@dataclass(slots=True, kw_only=True)
class _Session:
    """The requests that one setting sampled.

    Attributes:
        limit: How many may be kept; negative: any number.
        log_frequency: So many make a file; 0: all go into one.
        kept: How many have been kept.
        pending: Sampled and not finished, by router.
        records: Of the finished ones, not written yet.
        traces: How many those are.
        is_over: Another setting has taken its place.
    """

    limit: int
    log_frequency: int
    kept: int = 0
    pending: Counter[str] = field(default_factory=Counter)
    records: list[str] = field(default_factory=list)
    traces: int = 0
    is_over: bool = False

    @property
    def is_settled(self) -> bool:
        return not any(self.pending.values())

    @property
    def is_complete(self) -> bool:
        """Whether no further trace can come, since the count is used up."""
        return self.kept == self.limit and self.is_settled

    def take_page(self) -> Page:
        records = tuple(self.records)
        self.records.clear()
        self.traces = 0
        if self.is_complete or self.log_frequency:
            return IndexedFile(records)
        return CommonFile(records)


class TraceBook:
    """Collects the records of finished traces until a file is due."""

    def __init__(self) -> None:
        """Begin without sessions."""
        self._sessions: dict[int, _Session] = {}

    def begin(self, scopes: Iterable[TraceScope]) -> None:
        """Take note of the sessions there are, some of them new."""
        for scope in scopes:
            if scope.session not in self._sessions:
                self._sessions[scope.session] = _Session(
                    limit=scope.values.count, log_frequency=scope.values.log_frequency
                )

    def retire(self, scopes: Iterable[TraceScope]) -> list[Page]:
        """Take note that no router samples for other sessions than these."""
        current = {scope.session for scope in scopes}
        for number, session in self._sessions.items():
            session.is_over = number not in current
        return self._due()

    def sampled(self, router: str, session: int) -> None:
        """Expect a trace from ``router``."""
        if session in self._sessions:
            self._sessions[session].pending[router] += 1

    def ended(self, router: str, session: int, records: Iterable[str]) -> list[Page]:
        """Take in a finished trace.

        Traces beyond the count are dropped: several routers may have sampled the
        last of it at the same time. So are those of a session that nobody knows.
        """
        found = self._sessions.get(session)
        if found is None:
            return []
        found.pending[router] -= 1
        if found.kept != found.limit:
            found.kept += 1
            found.traces += 1
            found.records.extend(records)
        return self._due()

    def lost(self, router: str) -> list[Page]:
        """Expect nothing more from ``router``."""
        for session in self._sessions.values():
            session.pending.pop(router, None)
        return self._due()

    def close(self) -> list[Page]:
        """Return what has not been written yet."""
        left = [each for each in self._sessions.values() if each.records]
        self._sessions.clear()
        return [session.take_page() for session in left]

    def _due(self) -> list[Page]:
        pages = []
        for session in self._sessions.values():
            is_full = 0 < session.log_frequency <= session.traces
            is_last = session.is_complete or (session.is_over and session.is_settled)
            if session.records and (is_full or is_last):
                pages.append(session.take_page())
        for number, session in tuple(self._sessions.items()):
            if session.is_over and session.is_settled:
                del self._sessions[number]
        return pages
