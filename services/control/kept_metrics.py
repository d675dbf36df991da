"""The shell around the metrics of models: what workers tell, kept in the store.

The store has each source as it is and what ended sources had: writing either again
changes nothing. Until what an earlier process stored has been read, nothing is
written.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from services.control import model_metrics_text as text
from services.control.model_metrics import Families, ModelMetrics
from services.control.model_registry import VersionKey, Worker
from services.control.prometheus import Family
from services.control.store import Store, StoreAwayError

_log = structlog.get_logger(__name__)

_READ_AGAIN_S: Final = 2.0


class KeptMetrics:
    """Metrics of models that outlive workers and control."""

    def __init__(self, store: Store) -> None:
        """Begin with none; ``restore`` brings those there were."""
        self._store = store
        self._metrics = ModelMetrics()
        self._is_restored = False
        # By name: what it was made of, to know it when it changes.
        self._written: dict[str, tuple[VersionKey, Families]] = {}

    async def restore(self) -> None:
        """Go on from what an earlier process stored, as soon as it can be read."""
        try:
            text.add_stored(self._metrics, await self._stored())
        except ValueError as error:
            _log.warning("stored metrics are unreadable", reason=str(error))
        self._is_restored = True
        self._save()

    async def _stored(self) -> dict[str, str]:
        while True:
            try:
                return await self._store.metrics()
            except StoreAwayError as error:
                _log.debug("metrics of models cannot be read yet", reason=str(error))
                await asyncio.sleep(_READ_AGAIN_S)

    def joined(self, worker: Worker) -> None:
        """Take note of a worker's stream: its process took the place of another."""
        self._metrics.end_before(worker)
        self._save()

    def take(
        self, worker: Worker, source: int, version: VersionKey, families: Families
    ) -> None:
        """Take in what a source shows; nothing if it has ended."""
        self._metrics.take((worker.process, source), version, families)
        self._save()

    def left(self, worker: Worker, *, is_goodbye: bool) -> None:
        """Take note that a worker's stream has ended, for good or not."""
        if is_goodbye:
            self._metrics.end(worker.process)
        else:
            self._metrics.lose(worker.process)
        self._save()

    def reset(self, model: str) -> None:
        """Have the counters and histograms of a model begin at zero."""
        self._metrics.reset(model)
        self._save()

    def families(self, taken: Iterable[str] = ()) -> list[Family]:
        """Return all families together; none of the names ``taken``."""
        return self._metrics.families(taken)

    def families_of(self, worker: Worker) -> list[Family]:
        """Return the families of one worker."""
        return self._metrics.families_of(worker.process)

    def _save(self) -> None:
        if not self._is_restored:
            return
        present = self._present()
        for name in self._written.keys() - present.keys():
            self._store.save_metrics(name, "")
        for name, entry in present.items():
            before = self._written.get(name)
            if before is None or before[1] is not entry[1]:
                self._store.save_metrics(name, text.to_text(*entry))
        self._written = present

    def _present(self) -> dict[str, tuple[VersionKey, Families]]:
        metrics = self._metrics
        sources = {
            text.source_name(source): (shown.version, shown.families)
            for source, shown in metrics.sources.items()
        }
        ended = {
            text.ended_name(version): (version, families)
            for version, families in metrics.ended.items()
        }
        return sources | ended
