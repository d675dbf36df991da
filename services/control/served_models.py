"""The models that somebody wants served, and what each was made of."""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from weakref import WeakValueDictionary

import structlog

from services.control.events import ModelDesired, ModelDropped, ModelRefused
from services.control.preparation import (
    CompletionSettings,
    PreparedModel,
    prepare,
    written_config,
)
from services.control.repository import ModelFolder
from services.control.supervisor import Supervisor
from services.core.errors import ConfigError

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a model that is served was made of.

    Attributes:
        folder: In a repository, or written from a load request.
        config: The configuration of a load request, as JSON; None: the folder's.
        prepared: What came of it.
    """

    folder: ModelFolder
    config: str | None
    prepared: PreparedModel


class ServedModels:
    """Prepares models and tells the supervisor what to serve."""

    def __init__(self, supervisor: Supervisor, completion: CompletionSettings) -> None:
        """Begin with none."""
        self._supervisor = supervisor
        self._reconciler = supervisor.reconciler
        self._completion = completion
        self._sources: dict[str, Source] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __iter__(self) -> Iterator[tuple[str, Source]]:
        """Yield names and sources, as they are at the call."""
        return iter(list(self._sources.items()))

    def source_of(self, name: str) -> Source | None:
        """Return what a model was made of; None if it is not served."""
        return self._sources.get(name)

    def turn(self, name: str) -> asyncio.Lock:
        """Return what changes of one model wait for, one after the other."""
        return self._turns.setdefault(name, asyncio.Lock())

    async def bring(self, folder: ModelFolder, config: str | None) -> PreparedModel:
        """Prepare a model and have it served.

        Args:
            folder: Its files.
            config: JSON in the place of the folder's configuration, or None.

        Raises:
            ConfigError: it cannot be served; what served before still does.
        """
        written = written_config(folder, config)
        prepared = await prepare(folder, written, self._supervisor, self._completion)
        self._sources[folder.name] = Source(
            folder=folder, config=config, prepared=prepared
        )
        self._supervisor.tell(ModelDesired(model=folder.name, specs=prepared.specs))
        return prepared

    async def bring_or_refuse(
        self, folder: ModelFolder, config: str | None = None
    ) -> None:
        """As ``bring``; a model that cannot be served is known by its reason."""
        try:
            await self.bring(folder, config)
        except ConfigError as error:
            self.refuse(folder.name, str(error))

    def refuse(self, name: str, reason: str) -> None:
        """Note why a model that should be served cannot be."""
        _log.error("a model was refused", model=name, reason=reason)
        self._supervisor.tell(ModelRefused(model=name, reason=reason))

    def forget(self, name: str) -> None:
        """Have a model served no longer."""
        self._sources.pop(name, None)
        self._supervisor.tell(ModelDropped(model=name))

    def keep_former(self, name: str, former: Source | None) -> None:
        """Remember ``former`` if a failed load has left nothing else serving."""
        failed = self._sources.get(name)
        if former is None or failed is None:
            return
        registry = self._reconciler.registry
        serving = {
            generation.spec
            for spec in former.prepared.specs
            if (generation := registry.serving(spec.key))
        }
        if serving and serving.isdisjoint(failed.prepared.specs):
            self._sources[name] = former

    async def refresh_for_workers(self) -> None:
        """Prepare anew what other devices or backends may change."""
        async with asyncio.TaskGroup() as tasks:
            for name, source in self:
                if source.prepared.depends_on_workers:
                    tasks.create_task(self._refresh(name, source))

    async def _refresh(self, name: str, source: Source) -> None:
        async with self.turn(name):
            if self._sources.get(name) is source:
                await self.bring_or_refuse(source.folder, source.config)

    async def settled(self, names: Collection[str]) -> None:
        """Wait until each of these models serves or has failed."""
        await self._supervisor.until(
            lambda: not any(self._reconciler.is_pending(name) for name in names)
        )
