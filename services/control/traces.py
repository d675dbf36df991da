"""The shell around trace settings and trace files.

Routers decide which request is traced and send what they saw of it; one file is
written for all of them.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from services.control.commands import MoveTraces, SetTraces
from services.control.router_links import RouterLink, RouterLinks
from services.control.shared_rate import Progress, SharedRate
from services.control.trace_book import Page, TraceBook
from services.control.trace_files import TraceFiles
from services.control.trace_records import Trace, records_of
from services.control.trace_settings import TraceChange, TraceSettings
from services.control.trace_spans import SpanRecord, spans_of

# A router looks at its stream 50 times a second.
PATIENCE_S: Final = 1.0


class SpanExporter(Protocol):
    """Sends spans to where they are looked at."""

    def export(self, root: SpanRecord, traceparent: str) -> None:
        """Send a request's span and all within it; never blocks."""
        ...

    def close(self) -> None:
        """Send what waits; returns within seconds."""
        ...


class Traces:
    """Owns the settings in force, and what is not written yet."""

    def __init__(
        self,
        settings: TraceSettings,
        routers: RouterLinks,
        save: Callable[[TraceSettings], None],
        files: TraceFiles,
        exporter: SpanExporter | None = None,
    ) -> None:
        """Trace by ``settings``.

        Args:
            settings: Those of the start, or of an earlier process.
            routers: Are told of every change.
            save: Remembers the settings.
            files: Are written to.
            exporter: Gets what is traced in place of the files.
        """
        self._settings = settings
        self._routers = routers
        self._save = save
        self._files = files
        self._exporter = exporter
        self._book = TraceBook()
        self._book.begin(settings.scopes())
        self._rate = SharedRate()
        self._revision = 1
        self._applied: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._next_id = 1

    @property
    def settings(self) -> TraceSettings:
        """The settings in force, with counts as far as they have come down."""
        return self._settings

    async def update(self, model: str, change: TraceChange) -> None:
        """Change the settings of a model, or of all (""); all routers work by them.

        Returns when what was traced under former settings is in its files, unless the
        disk takes too long.

        Raises:
            ServingError: they make no sense; nothing is changed then.
        """
        # What is left of a count goes on; it has to be known.
        await self.read(model)
        self._settings = self._settings.updated(model, change)
        self._book.begin(self._settings.scopes())
        await self.collect()
        self._write(self._book.retire(self._settings.scopes()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._files.settled()

    async def collect(self) -> None:
        """Have all routers report, and work by the settings in force.

        Routers that take too long are not waited for.
        """
        self._publish()
        revision = self._revision
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while self._is_behind(revision):
                    await self._changed.wait()

    async def read(self, model: str) -> TraceSettings:
        """Return the settings, with all counted that was sampled before the call.

        Args:
            model: Whose settings are wanted; "" for those of all.
        """
        values = self._settings.scope_of(model).values
        if values.count > 0 and self._settings.is_active(values):
            await self.collect()
        return self._settings

    def greet(self, link: RouterLink) -> None:
        """Tell a router that has just attached of the settings."""
        self._rate.forget(link.router_id)
        self._applied[link.router_id] = 0
        link.tell(self._order())

    def note_applied(self, router_id: str, revision: int) -> None:
        """Note that a router works by the settings of ``revision``."""
        self._applied[router_id] = revision
        self._notice()

    def counted(self, router_id: str, progress: Progress) -> None:
        """Take in how far a router has come on its way to its next sample."""
        rates = {each.session: each.values.rate for each in self._settings.scopes()}
        if progress.session not in rates:
            return
        links = {link.router_id: link for link in self._routers.links()}
        for move in self._rate.told(router_id, progress, rates[progress.session]):
            if move.router in links:
                links[move.router].tell(MoveTraces(session=move.session, by=move.by))

    def sampled(self, router_id: str, session: int) -> None:
        """Count a request down that a router is going to trace."""
        self._book.sampled(router_id, session)
        before = self._settings
        self._settings = before.counted(session)
        if self._settings != before:
            self._save(self._settings)
            if any(s.values.count == 0 for s in self._settings.scopes()):
                # Other routers may still count on the rest of it.
                self._publish()

    def ended(self, router_id: str, session: int, trace: Trace) -> None:
        """Take in what a router saw of a traced request."""
        if self._exporter is not None:
            root, self._next_id = spans_of(trace, self._next_id)
            if root is not None:
                self._exporter.export(root, trace.traceparent)
            return
        records, self._next_id = records_of(trace, self._next_id)
        self._write(self._book.ended(router_id, session, records))

    def lose(self, router_id: str) -> None:
        """Expect nothing more from a router that left."""
        self._applied.pop(router_id, None)
        self._rate.forget(router_id)
        self._write(self._book.lost(router_id))
        self._notice()

    def close(self) -> None:
        """Write or send what is left."""
        self._write(self._book.close())
        self._files.close()
        if self._exporter is not None:
            self._exporter.close()

    def _publish(self) -> None:
        self._revision += 1
        self._rate.keep(scope.session for scope in self._settings.scopes())
        for link in self._routers.links():
            link.tell(self._order())
        self._save(self._settings)

    def _order(self) -> SetTraces:
        return SetTraces(revision=self._revision, settings=self._settings)

    def _is_behind(self, revision: int) -> bool:
        attached = (link.router_id for link in self._routers.links())
        return any(self._applied.get(name, 0) < revision for name in attached)

    def _write(self, pages: Sequence[Page]) -> None:
        self._files.write(pages)

    def _notice(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
