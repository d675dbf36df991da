"""Which models of the repositories are served: at the start, on demand, by polling."""

import asyncio
from collections.abc import Collection

import structlog

from services.control import repository
from services.control.catalog_settings import (
    EVERY_MODEL,
    CatalogSettings,
    ControlMode,
)
from services.control.events import ModelDropped, StartUpOver
from services.control.load_requests import LoadRequests, failed_to_poll
from services.control.on_demand import OnDemand
from services.control.overrides import NO_OVERRIDE, Override
from services.control.patience import patience
from services.control.preparation import written_config
from services.control.repository import DUPLICATE, ModelFolder, Survey
from services.control.served_models import ServedModels
from services.control.supervisor import Supervisor
from services.control.worker_links import Capability
from services.core.clock import Clock
from services.core.errors import ConfigError, InternalError, ModelNotReadyError

_log = structlog.get_logger(__name__)


class Catalog:
    """Reads the repositories and tells the supervisor what to serve.

    Attributes:
        on_demand: Loads what is asked for, in ON_DEMAND mode; else None.
    """

    def __init__(
        self, supervisor: Supervisor, settings: CatalogSettings, clock: Clock
    ) -> None:
        """Begin without having looked; ``clock`` tells how long somebody waits."""
        self._supervisor = supervisor
        self._reconciler = supervisor.reconciler
        self._settings = settings
        self._models = ServedModels(supervisor, settings.completion)
        self._requests = LoadRequests(self._models, supervisor, settings)
        self.on_demand = (
            OnDemand(supervisor, self._requests, settings, clock)
            if settings.mode is ControlMode.ON_DEMAND
            else None
        )
        # What polling has seen, served or not.
        self._seen: dict[str, ModelFolder | None] = {}

    @property
    def without_version(self) -> frozenset[str]:
        """Models that somebody wanted to load and that have no version to serve."""
        return self._requests.without_version

    @property
    def mode(self) -> ControlMode:
        """Who decides what is loaded."""
        return self._settings.mode

    async def survey(self) -> Survey:
        """Return what lies in the repositories now.

        Raises:
            InternalError: a repository cannot be listed.
        """
        await asyncio.to_thread(self._settings.remotes.refresh)
        found = await asyncio.to_thread(
            repository.scan, self._settings.roots, self._settings.config_name
        )
        if self.on_demand is not None:
            self.on_demand.offer(frozenset(found.models))
        return found

    async def start_up(self) -> list[str]:
        """Load what is to be loaded at the start, and wait for the outcome.

        Returns:
            What failed, one text for each model or version.

        Raises:
            InternalError: a repository cannot be listed.
        """
        found = await self.survey()
        names = self._start_up_names(found)
        self._drop_others(names)
        await self._bring_all(found, names)
        await self._models.settled(names)
        known = self._supervisor.capabilities
        while self._lacks_worker(names) and await self._fleet_grows(known):
            known = self._supervisor.capabilities
            await self._models.refresh_for_workers()
            await self._models.settled(names)
        await self._supervisor.until(lambda: not self._reconciler.awaited)
        failures = self._failures(names)
        self._supervisor.tell(StartUpOver())
        return failures

    async def load(self, name: str, override: Override = NO_OVERRIDE) -> None:
        """Load or reload one model; return when routers can send requests to it.

        A model that is served with another configuration than its repository's
        keeps it until its files change or it is unloaded. What an ensemble is made
        of is loaded before it.

        Args:
            name: Of the model.
            override: What takes the place of the repository's files.

        Raises:
            ModelNotReadyError: the mode does not allow it, or there is no worker.
            InternalError: there is no such model, or its configuration is bad.
            InvalidRequestError: a version failed to load, or there is none; or a
                file has no safe name.
        """
        self._require_explicit()
        if self.on_demand is not None:
            await self.on_demand.load(name, override)
        else:
            await self._requests.load(name, override)

    async def unload(self, name: str, *, with_members: bool = False) -> None:
        """Unload one model; return when routers send it no more requests.

        Args:
            name: Of the model.
            with_members: If it is an ensemble, unload what its steps call as well.

        Raises:
            ModelNotReadyError: the mode does not allow it.
        """
        self._require_explicit()
        await self._requests.unload(name, with_members=with_members)

    async def tidy(self) -> None:
        """Remove files of load requests once nobody reads them, until cancelled."""
        await self._requests.tidy()

    def close(self) -> None:
        """Remove copies of repositories, and files of requests if they are ours."""
        self._requests.close()
        self._settings.remotes.close()

    async def follow_workers(self) -> None:
        """Prepare models anew whenever workers bring what they may depend on."""
        known: frozenset[Capability] = frozenset()
        while True:
            known = await self._supervisor.capabilities_beyond(known)
            await self._models.refresh_for_workers()

    async def forget_strangers(self) -> None:
        """Drop what workers may come back with and nobody wants any more."""
        await self._supervisor.until(lambda: not self._reconciler.is_ignorant)
        self._drop_others(self._seen)

    async def serve_demand(self) -> None:
        """Load what is asked for, in ON_DEMAND mode, until cancelled."""
        if self.on_demand is not None:
            await self.on_demand.run()

    async def poll(self) -> None:
        """Follow the repositories, in POLL and ON_DEMAND mode, until cancelled."""
        follows = self.mode in (ControlMode.POLL, ControlMode.ON_DEMAND)
        while follows and self._settings.poll_interval_s > 0:
            await asyncio.sleep(self._settings.poll_interval_s)
            try:
                found = await self.survey()
            except InternalError as error:
                _log.error("polling failed", reason=str(error))
                continue
            if self.mode is ControlMode.POLL:
                await self._follow(found)

    async def _follow(self, found: Survey) -> None:
        for gone in self._reconciler.desired_models() - set(found.names):
            self._seen.pop(gone, None)
            self._models.forget(gone)
        changed = [
            name
            for name in found.names
            if name not in self._seen or found.models.get(name) != self._seen[name]
        ]
        await self._bring_all(found, changed)

    def _drop_others(self, names: Collection[str]) -> None:
        """Serve nothing but ``names``, where clients do not decide."""
        if not self.mode.takes_requests:
            for gone in self._reconciler.desired_models() - set(names):
                self._supervisor.tell(ModelDropped(model=gone))

    def _start_up_names(self, found: Survey) -> tuple[str, ...]:
        named = self._settings.start_up_models
        if not self.mode.takes_requests or EVERY_MODEL in named:
            return found.names
        names = list(dict.fromkeys(named))
        for name in names:  # grows while it is walked
            folder = found.models.get(name)
            names += [each for each in _members(folder) if each not in names]
        return tuple(names)

    async def _bring_all(self, found: Survey, names: Collection[str]) -> None:
        # Ensembles last: by then it is known which members are on their way.
        ensembles = {name for name in names if _members(found.models.get(name))}
        await self._bring_each(found, [n for n in names if n not in ensembles])
        await self._bring_each(found, sorted(ensembles))

    async def _bring_each(self, found: Survey, names: Collection[str]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                folder = self._seen[name] = found.models.get(name)
                if folder is not None:
                    tasks.create_task(self._models.bring_or_refuse(folder))
                else:
                    is_double = name in found.duplicates
                    reason = DUPLICATE if is_double else str(failed_to_poll(name))
                    self._models.refuse(name, reason)

    def _lacks_worker(self, names: Collection[str]) -> bool:
        is_lacking = any(
            generation.lacks_device and generation.spec.model in names
            for generation in self._reconciler.registry
        )
        return is_lacking or any(
            spec.refusal and source.prepared.depends_on_workers
            for name, source in self._models
            if name in names
            for spec in source.prepared.specs
        )

    async def _fleet_grows(self, known: frozenset[Capability]) -> bool:
        try:
            async with patience(self._settings.fleet_wait_s):
                await self._supervisor.capabilities_beyond(known)
        except TimeoutError:
            return False
        return True

    def _failures(self, names: Collection[str]) -> list[str]:
        problems = [
            f"failed to load '{name}': {reason}"
            for name, reason in sorted(self._reconciler.problems.items())
            if name in names
        ]
        return problems + [
            f"failed to load '{each.spec.model}' version {each.spec.version}:"
            f" {each.reason}"
            for each in self._reconciler.registry
            if each.is_failed and each.spec.model in names
        ]

    def _require_explicit(self) -> None:
        if not self.mode.takes_requests:
            raise ModelNotReadyError(
                "explicit model load / unload is not allowed if polling is enabled"
            )


def _members(folder: ModelFolder | None) -> tuple[str, ...]:
    """Return what an ensemble's steps call; () if that cannot be told."""
    try:
        return written_config(folder, None).member_models if folder else ()
    except ConfigError:
        return ()
