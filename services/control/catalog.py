"""Which models of the repositories are served: at the start, on demand, by polling."""

import asyncio
import enum
from collections.abc import Collection
from dataclasses import dataclass, field

import structlog

from services.control import repository
from services.control.events import (
    ModelDesired,
    ModelDropped,
    ModelRefused,
    StartUpOver,
)
from services.control.preparation import (
    CompletionSettings,
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

EVERY_MODEL = "*"


class ControlMode(enum.Enum):
    """Who decides which models are loaded (--model-control-mode)."""

    NONE = "none"
    EXPLICIT = "explicit"
    POLL = "poll"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """How the repositories are served.

    Attributes:
        roots: The repositories.
        mode: Who decides what is loaded.
        start_up_models: For EXPLICIT mode; ``*`` among them means all.
        completion: How far configurations are completed.
        poll_interval_s: For POLL mode.
        fleet_wait_s: How long a start-up that lacks a device or a backend waits
            for one more worker.
    """

    roots: tuple[str, ...]
    mode: ControlMode = ControlMode.NONE
    start_up_models: tuple[str, ...] = ()
    completion: CompletionSettings = field(
        default_factory=lambda: CompletionSettings(
            auto_complete=True, max_batch_sizes={}
        )
    )
    poll_interval_s: float = 15.0
    fleet_wait_s: float = 5.0


class Catalog:
    """Reads the repositories and tells the supervisor what to serve."""

    def __init__(self, supervisor: Supervisor, settings: CatalogSettings) -> None:
        """Begin without having looked."""
        self._supervisor = supervisor
        self._reconciler = supervisor.reconciler
        self._settings = settings
        # What the models that are served were made of.
        self._sources: dict[str, tuple[ModelFolder, str | None]] = {}
        self._prepared: dict[str, PreparedModel] = {}
        self._without_version: set[str] = set()

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
        return await asyncio.to_thread(repository.scan, self._settings.roots)

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

    async def load(self, name: str, override: str | None = None) -> None:
        """Load or reload one model; return when routers can send requests to it.

        Args:
            name: Of the model.
            override: A configuration as JSON, in the place of config.pbtxt.

        Raises:
            ModelNotReadyError: the mode does not allow it.
            InternalError: there is no such model, or its configuration is bad.
            InvalidRequestError: a version failed to load, or there is none.
        """
        self._require_explicit()
        found = await asyncio.to_thread(
            repository.scan_model, self._settings.roots, name
        )
        folder = found.models.get(name)
        if folder is None:
            raise _failed_to_poll(name)
        try:
            await self._bring(folder, override)
        except NoVersionError as error:
            self._without_version.add(name)
            raise InvalidRequestError(
                f"load failed for model '{name}': {error}\n"
            ) from error
        except ConfigError as error:
            _log.error("a model was refused", model=name, reason=str(error))
            raise _failed_to_poll(name) from error
        self._without_version.discard(name)
        wanted = {spec.key: spec for spec in self._prepared[name].specs}
        await self._settled([name])
        reasons = [
            f"version {version} is at UNAVAILABLE state: {reason};\n"
            for (model, version), reason in sorted(
                self._supervisor.failures_of(wanted).items()
            )
            if model == name
        ]
        if reasons:
            raise InvalidRequestError(
                f"load failed for model '{name}': {''.join(reasons)}"
            )
        await self._supervisor.routes_applied()

    async def unload(self, name: str) -> None:
        """Unload one model; return when routers send it no more requests.

        Raises:
            ModelNotReadyError: the mode does not allow it.
        """
        self._require_explicit()
        self._forget(name)
        await self._supervisor.routes_applied()

    async def follow_workers(self) -> None:
        """Prepare models anew whenever workers bring what they may depend on."""
        known: frozenset[Capability] = frozenset()
        while True:
            known = await self._supervisor.capabilities_beyond(known)
            await self._refresh_for_workers()

    async def poll(self) -> None:
        """Follow the repositories, in POLL mode, until cancelled."""
        while self.mode is ControlMode.POLL:
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
            if found.models.get(name) != self._sources.get(name, (None, None))[0]
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
                folder = found.models.get(name)
                if folder is not None:
                    tasks.create_task(self._bring_or_refuse(folder))
                else:
                    is_double = name in found.duplicates
                    reason = DUPLICATE if is_double else str(_failed_to_poll(name))
                    self._refuse(name, reason)

    async def _bring_or_refuse(
        self, folder: ModelFolder, override: str | None = None
    ) -> None:
        try:
            await self._bring(folder, override)
        except ConfigError as error:
            self._refuse(folder.name, str(error))

    async def _bring(self, folder: ModelFolder, override: str | None) -> None:
        """Prepare a model and have it served.

        Raises:
            ConfigError: it cannot be served.
        """
        self._sources[folder.name] = (folder, override)
        written = written_config(folder, override)
        prepared = await prepare(
            folder, written, self._supervisor, self._settings.completion
        )
        self._prepared[folder.name] = prepared
        self._supervisor.tell(ModelDesired(model=folder.name, specs=prepared.specs))

    async def _refresh_for_workers(self) -> None:
        for name, prepared in list(self._prepared.items()):
            if prepared.depends_on_workers and name in self._sources:
                await self._bring_or_refuse(*self._sources[name])

    def _refuse(self, name: str, reason: str) -> None:
        _log.error("a model was refused", model=name, reason=reason)
        self._prepared.pop(name, None)
        self._supervisor.tell(ModelRefused(model=name, reason=reason))

    def _forget(self, name: str) -> None:
        self._sources.pop(name, None)
        self._prepared.pop(name, None)
        self._supervisor.tell(ModelDropped(model=name))

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
            spec.refusal and prepared.depends_on_workers
            for name, prepared in self._prepared.items()
            if name in names
            for spec in prepared.specs
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
