"""Which models of the repositories are served: at the start, on demand, by polling."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from weakref import WeakValueDictionary

import structlog

from services.control import repository
from services.control.catalog_settings import (
    EVERY_MODEL,
    CatalogSettings,
    ControlMode,
)
from services.control.events import (
    ModelDesired,
    ModelDropped,
    ModelRefused,
    StartUpOver,
)
from services.control.model_registry import VersionSpec
from services.control.overrides import NO_OVERRIDE, Override, OverrideFolders
from services.control.preparation import (
    NoVersionError,
    PreparedModel,
    prepare,
    written_config,
)
from services.control.repository import DUPLICATE, ModelFolder, Survey
from services.control.supervisor import Supervisor
from services.control.worker_links import Capability
from services.core.errors import (
    ConfigError,
    InternalError,
    InvalidRequestError,
    ModelNotReadyError,
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What a model that is served was made of.

    Attributes:
        folder: In a repository, or written from a load request.
        config: The configuration of a load request, as JSON; None: the folder's.
        prepared: What came of it.
    """

    folder: ModelFolder
    config: str | None
    prepared: PreparedModel


class Catalog:
    """Reads the repositories and tells the supervisor what to serve."""

    def __init__(self, supervisor: Supervisor, settings: CatalogSettings) -> None:
        """Begin without having looked."""
        self._supervisor = supervisor
        self._reconciler = supervisor.reconciler
        self._settings = settings
        self._overrides = OverrideFolders(settings.override_root)
        # Written, and not in the reconciler's hands yet.
        self._held: set[str] = set()
        self._writing = asyncio.Lock()
        self._sources: dict[str, _Source] = {}
        # What polling has seen, served or not.
        self._seen: dict[str, ModelFolder | None] = {}
        self._without_version: set[str] = set()
        # Loads and unloads of one model wait for each other.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def without_version(self) -> frozenset[str]:
        """Models that somebody wanted to load and that have no version to serve."""
        return frozenset(self._without_version)

    @property
    def mode(self) -> ControlMode:
        """Who decides what is loaded."""
        return self._settings.mode

    async def survey(self) -> Survey:
        """Return what lies in the repositories now.

        Raises:
            InternalError: a repository cannot be listed.
        """
        return await asyncio.to_thread(
            repository.scan, self._settings.roots, self._settings.config_name
        )

    async def start_up(self) -> list[str]:
        """Load what is to be loaded at the start, and wait for the outcome.

        Returns:
            What failed, one text for each model or version.

        Raises:
            InternalError: a repository cannot be listed.
        """
        found = await self.survey()
        names = self._start_up_names(found)
        if self.mode is not ControlMode.EXPLICIT:
            for gone in self._reconciler.desired_models() - set(names):
                self._supervisor.tell(ModelDropped(model=gone))
        await self._bring_all(found, names)
        await self._settled(names)
        known = self._supervisor.capabilities
        while self._lacks_worker(names) and await self._fleet_grows(known):
            known = self._supervisor.capabilities
            await self._refresh_for_workers()
            await self._settled(names)
        await self._supervisor.until(lambda: not self._reconciler.awaited)
        failures = self._failures(names)
        self._supervisor.tell(StartUpOver())
        return failures

    async def load(self, name: str, override: Override = NO_OVERRIDE) -> None:
        """Load or reload one model; return when routers can send requests to it.

        A model that is served with another configuration than its repository's
        keeps it until its files change or it is unloaded.

        Args:
            name: Of the model.
            override: What takes the place of the repository's files.

        Raises:
            ModelNotReadyError: the mode does not allow it.
            InternalError: there is no such model, or its configuration is bad.
            InvalidRequestError: a version failed to load, or there is none; or a
                file has no safe name.
        """
        self._require_explicit()
        async with self._turn(name):
            former = self._sources.get(name)
            async with self._found(name, override) as folder:
                config = override.config
                if override.is_empty and former and former.folder == folder:
                    config = former.config
                specs = await self._begin_load(folder, config)
                await self._settled([name])
            try:
                self._require_loaded(name, specs)
            except InvalidRequestError:
                self._restore(name, former)
                raise
            await self._supervisor.routes_applied()

    async def unload(self, name: str) -> None:
        """Unload one model; return when routers send it no more requests.

        Raises:
            ModelNotReadyError: the mode does not allow it.
        """
        self._require_explicit()
        async with self._turn(name):
            self._forget(name)
            await self._supervisor.routes_applied()

    async def tidy(self) -> None:
        """Remove what was written for load requests once nobody reads it."""
        while True:
            await self._supervisor.until(
                lambda: self._overrides.has_unused(self._directories_in_use())
            )
            await self._sweep()

    def close(self) -> None:
        """Remove what was written for load requests, unless it was told where."""
        self._overrides.close()

    async def follow_workers(self) -> None:
        """Prepare models anew whenever workers bring what they may depend on."""
        known: frozenset[Capability] = frozenset()
        while True:
            known = await self._supervisor.capabilities_beyond(known)
            await self._refresh_for_workers()

    async def poll(self) -> None:
        """Follow the repositories, in POLL mode, until cancelled."""
        while self.mode is ControlMode.POLL and self._settings.poll_interval_s > 0:
            await asyncio.sleep(self._settings.poll_interval_s)
            try:
                found = await self.survey()
            except InternalError as error:
                _log.error("polling failed", reason=str(error))
                continue
            await self._follow(found)

    async def _follow(self, found: Survey) -> None:
        for gone in self._reconciler.desired_models() - set(found.names):
            self._forget(gone)
        changed = [
            name
            for name in found.names
            if name not in self._seen or found.models.get(name) != self._seen[name]
        ]
        await self._bring_all(found, changed)

    def _start_up_names(self, found: Survey) -> tuple[str, ...]:
        named = self._settings.start_up_models
        if self.mode is not ControlMode.EXPLICIT or EVERY_MODEL in named:
            return found.names
        return tuple(dict.fromkeys(named))

    async def _bring_all(self, found: Survey, names: Collection[str]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                folder = self._seen[name] = found.models.get(name)
                if folder is not None:
                    tasks.create_task(self._bring_or_refuse(folder))
                else:
                    is_double = name in found.duplicates
                    reason = DUPLICATE if is_double else str(_failed_to_poll(name))
                    self._refuse(name, reason)

    async def _bring_or_refuse(
        self, folder: ModelFolder, config: str | None = None
    ) -> None:
        try:
            await self._bring(folder, config)
        except ConfigError as error:
            self._refuse(folder.name, str(error))

    async def _bring(self, folder: ModelFolder, config: str | None) -> PreparedModel:
        """Prepare a model and have it served.

        Raises:
            ConfigError: it cannot be served.
        """
        written = written_config(folder, config)
        prepared = await prepare(
            folder, written, self._supervisor, self._settings.completion
        )
        self._sources[folder.name] = _Source(
            folder=folder, config=config, prepared=prepared
        )
        self._supervisor.tell(ModelDesired(model=folder.name, specs=prepared.specs))
        return prepared

    async def _refresh_for_workers(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name, source in self._sources.items():
                if source.prepared.depends_on_workers:
                    tasks.create_task(self._refresh(name, source))

    async def _refresh(self, name: str, source: _Source) -> None:
        async with self._turn(name):
            if self._sources.get(name) is source:
                await self._bring_or_refuse(source.folder, source.config)

    def _refuse(self, name: str, reason: str) -> None:
        _log.error("a model was refused", model=name, reason=reason)
        self._supervisor.tell(ModelRefused(model=name, reason=reason))

    def _forget(self, name: str) -> None:
        self._sources.pop(name, None)
        self._seen.pop(name, None)
        self._supervisor.tell(ModelDropped(model=name))

    # ------------------------------------------------------- load requests

    def _turn(self, name: str) -> asyncio.Lock:
        """Return what the holder of may load or unload a model."""
        return self._turns.setdefault(name, asyncio.Lock())

    @contextlib.asynccontextmanager
    async def _found(self, name: str, override: Override) -> AsyncIterator[ModelFolder]:
        """Find or write the folder that a load request is about.

        Raises:
            InternalError: there is no such model, or files come without the
                configuration that goes with them.
            InvalidRequestError: a file has no safe name.
        """
        if not override.files:
            found = await asyncio.to_thread(
                repository.scan_model,
                self._settings.roots,
                name,
                self._settings.config_name,
            )
            if name not in found.models:
                raise _failed_to_poll(name)
            yield found.models[name]
            return
        if override.config is None:
            _log.error("files without a configuration were refused", model=name)
            raise _failed_to_poll(name)
        async with self._writing:
            path = await asyncio.to_thread(self._overrides.write, name, override.files)
            self._held.add(str(path / "1"))
        try:
            yield await asyncio.to_thread(repository.read_model, path)
        finally:
            self._held.discard(str(path / "1"))
            await self._sweep()

    async def _begin_load(
        self, folder: ModelFolder, config: str | None
    ) -> tuple[VersionSpec, ...]:
        """Have a model served, with errors in the words of a load request."""
        name = folder.name
        try:
            prepared = await self._bring(folder, config)
        except NoVersionError as error:
            self._without_version.add(name)
            raise InvalidRequestError(
                f"load failed for model '{name}': {error}\n"
            ) from error
        except ConfigError as error:
            _log.error("a model was refused", model=name, reason=str(error))
            raise _failed_to_poll(name) from error
        self._without_version.discard(name)
        return prepared.specs

    def _require_loaded(self, name: str, specs: tuple[VersionSpec, ...]) -> None:
        failures = self._supervisor.failures_of({spec.key: spec for spec in specs})
        reasons = [
            f"version {version} is at UNAVAILABLE state: {reason};\n"
            for (_, version), reason in sorted(failures.items())
        ]
        if reasons:
            raise InvalidRequestError(
                f"load failed for model '{name}': {''.join(reasons)}"
            )

    def _restore(self, name: str, former: _Source | None) -> None:
        """Remember what serves if a load has changed nothing of it."""
        failed = self._sources.get(name)
        if former is None or failed is None:
            return
        serving = {
            spec.key: generation.spec
            for spec in former.prepared.specs
            if (generation := self._reconciler.registry.serving(spec.key))
        }
        if serving and not set(failed.prepared.specs) & set(serving.values()):
            self._sources[name] = former

    def _directories_in_use(self) -> set[str]:
        return self._reconciler.directories_in_use() | self._held

    async def _sweep(self) -> None:
        async with self._writing:
            await asyncio.to_thread(self._overrides.sweep, self._directories_in_use())

    async def _settled(self, names: Collection[str]) -> None:
        await self._supervisor.until(
            lambda: not any(self._reconciler.is_pending(name) for name in names)
        )

    def _lacks_worker(self, names: Collection[str]) -> bool:
        is_lacking = any(
            generation.lacks_device and generation.spec.model in names
            for generation in self._reconciler.registry
        )
        return is_lacking or any(
            spec.refusal and source.prepared.depends_on_workers
            for name, source in self._sources.items()
            if name in names
            for spec in source.prepared.specs
        )

    async def _fleet_grows(self, known: frozenset[Capability]) -> bool:
        try:
            async with asyncio.timeout(self._settings.fleet_wait_s):
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
        if self.mode is not ControlMode.EXPLICIT:
            raise ModelNotReadyError(
                "explicit model load / unload is not allowed if polling is enabled"
            )


def _failed_to_poll(name: str) -> InternalError:
    return InternalError(
        f"failed to load '{name}', failed to poll from model repository"
    )
