"""Writes trace files, on a thread of their own so that nobody waits for a disk."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from services.control.trace_book import IndexedFile, Page

_log = structlog.get_logger(__name__)


class TraceFiles:
    """The file that ``--trace-config`` names, and its siblings with an index."""

    def __init__(self, path: str) -> None:
        """Create nothing yet; an empty path is never written to."""
        self._path = path
        self._next_index = 0
        self._is_begun = False
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="trace-files")

    def write(self, pages: Sequence[Page]) -> None:
        """Have pages written, after those before them."""
        if pages:
            self._writer.submit(self._write, pages)

    async def settled(self) -> None:
        """Return when what was given so far is written."""
        await asyncio.wrap_future(self._writer.submit(_nothing_more))

    def close(self) -> None:
        """Return when everything is written, and every file is complete JSON."""
        self._writer.submit(self._finish)
        self._writer.shutdown(wait=True)

    def _write(self, pages: Sequence[Page]) -> None:
        for page in pages:
            try:
                self._write_page(page)
            except OSError as error:
                _log.error("a trace file could not be written", reason=str(error))

    def _write_page(self, page: Page) -> None:
        text = ",".join(page.records)
        if isinstance(page, IndexedFile):
            path = Path(f"{self._path}.{self._next_index}")
            self._next_index += 1
            path.write_text(f"[{text}]", encoding="utf-8")
            return
        with Path(self._path).open(
            "a" if self._is_begun else "w", encoding="utf-8"
        ) as (file):
            file.write(f",{text}" if self._is_begun else f"[{text}")
        self._is_begun = True

    def _finish(self) -> None:
        if self._is_begun:
            with Path(self._path).open("a", encoding="utf-8") as file:
                file.write("]")


def _nothing_more() -> None:
    """Be what comes behind all pages."""
