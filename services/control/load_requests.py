"""Loads and unloads that clients ask for, in explicit mode."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog

from services.control import config_pbtxt, repository
from services.control.catalog_settings import EVERY_MODEL, CatalogSettings
from services.control.model_registry import VersionSpec
from services.control.overrides import NO_OVERRIDE, Override, OverrideFolders
from services.control.preparation import NoVersionError, written_config
from services.control.repository import ModelFolder, Survey
from services.control.served_models import ServedModels
from services.control.supervisor import Supervisor
from services.control.worker_presence import while_workers_are_there
from services.core.errors import (
    ConfigError,
    InternalError,
    InvalidRequestError,
    ServingError,
)

_log = structlog.get_logger(__name__)


class LoadRequests:
    """Loads and unloads models, one change of a model after the other."""

    def __init__(
        self, models: ServedModels, supervisor: Supervisor, settings: CatalogSettings
    ) -> None:
        """Begin with nothing asked for."""
        self._models = models
        self._supervisor = supervisor
        self._settings = settings
        self._overrides = OverrideFolders(settings.override_root)
        # Written, and not in the reconciler's hands yet.
        self._held: set[str] = set()
        self._writing = asyncio.Lock()
        self._without_version: set[str] = set()
        # Models that are served for their own sake, not for an ensemble's.
        self._asked = set(settings.start_up_models)

    @property
    def without_version(self) -> frozenset[str]:
        """Models that somebody wanted to load and that have no version to serve."""
        return frozenset(self._without_version)

    async def load(
        self, name: str, override: Override = NO_OVERRIDE, above: tuple[str, ...] = ()
    ) -> None:
        """Load a model, and before it what it is made of.

        Args:
            name: Of the model.
            override: What takes the place of the repository's files.
            above: The ensembles that it is loaded for.

        Raises:
            InternalError: there is no such model, or its configuration is bad.
            InvalidRequestError: a version failed to load, or there is none; or a
                file has no safe name.
        """
        if not above:
            self._asked.add(name)
        for member in await self._members(name, override):
            if member not in (*above, name):
                try:
                    await self.load(member, above=(*above, name))
                except ServingError as error:
                    _log.warning("a member was not loaded", reason=str(error))
        async with self._models.turn(name):
            await self._load(name, override)

    async def unload(self, name: str, *, with_members: bool = False) -> None:
        """Unload a model.

        Args:
            name: Of the model.
            with_members: Also what an ensemble is made of, as far as nobody asked
                for it by name.
        """
        names = [name]
        # Grows while it is walked: members may be ensembles.
        for each in names if with_members else ():
            source = self._models.source_of(each)
            specs = source.prepared.specs if source else ()
            members = dict.fromkeys(
                model for spec in specs for model, _ in spec.members
            )
            names += [
                model
                for model in members
                if self._asked.isdisjoint((model, EVERY_MODEL)) and model not in names
            ]
        self._asked.discard(name)
        for each in names:
            async with self._models.turn(each):
                self._models.forget(each)
        await self._supervisor.routes_applied()

    async def tidy(self) -> None:
        """Remove files of requests once nobody reads them, until cancelled."""
        while True:
            await self._supervisor.until(
                lambda: self._overrides.has_unused(self._directories_in_use())
            )
            await self._sweep()

    def close(self) -> None:
        """Remove files of requests, unless it was told where to write them."""
        self._overrides.close()

    async def _members(self, name: str, override: Override) -> tuple[str, ...]:
        """Return what an ensemble's steps call, as far as that can be told."""
        try:
            if override.config is not None:
                return config_pbtxt.parse_json(override.config).member_models
            found = await self._scan(name)
            if name not in found.models:
                return ()
            return written_config(found.models[name], None).member_models
        except ConfigError:
            return ()

    async def _load(self, name: str, override: Override) -> None:
        former = self._models.source_of(name)
        async with self._folder(name, override) as folder:
            config = override.config
            if override.is_empty and former and former.folder == folder:
                # As Triton does: it lasts until the files change.
                config = former.config
            specs = await while_workers_are_there(
                self._supervisor,
                self._bring(folder, config),
                self._settings.worker_wait_s,
            )
        # A failure is news for the routers too: it is told by their readiness.
        await self._supervisor.routes_applied()
        try:
            self._require_loaded(name, specs)
        except InvalidRequestError:
            self._models.keep_former(name, former)
            raise

    async def _bring(
        self, folder: ModelFolder, config: str | None
    ) -> tuple[VersionSpec, ...]:
        """Have a model served, and wait for the outcome."""
        specs = await self._begin(folder, config)
        await self._models.settled([folder.name])
        return specs

    async def _begin(
        self, folder: ModelFolder, config: str | None
    ) -> tuple[VersionSpec, ...]:
        """Have a model served, with errors in the words of a load request."""
        name = folder.name
        try:
            prepared = await self._models.bring(folder, config)
        except NoVersionError as error:
            self._without_version.add(name)
            raise InvalidRequestError(
                f"load failed for model '{name}': {error}\n"
            ) from error
        except ConfigError as error:
            _log.error("a model was refused", model=name, reason=str(error))
            raise failed_to_poll(name) from error
        self._without_version.discard(name)
        return prepared.specs

    def _require_loaded(self, name: str, specs: tuple[VersionSpec, ...]) -> None:
        by_key = {spec.key: spec for spec in specs}
        reasons = [
            # What an ensemble lacks, all its versions lack.
            f"{reason}\n"
            if by_key[key].members
            else f"version {key[1]} is at UNAVAILABLE state: {reason};\n"
            for key, reason in sorted(self._supervisor.failures_of(by_key).items())
        ]
        if reasons:
            text = "".join(dict.fromkeys(reasons))
            raise InvalidRequestError(f"load failed for model '{name}': {text}")

    # ---------------------------------------------------------------- files

    async def _scan(self, name: str) -> Survey:
        await asyncio.to_thread(self._settings.remotes.refresh, name)
        return await asyncio.to_thread(
            repository.scan_model,
            self._settings.roots,
            name,
            self._settings.config_name,
        )

    @contextlib.asynccontextmanager
    async def _folder(
        self, name: str, override: Override
    ) -> AsyncIterator[ModelFolder]:
        """Find or write the folder that a request is about.

        Raises:
            InternalError: there is no such model, or files come without the
                configuration that goes with them.
            InvalidRequestError: a file has no safe name.
        """
        if not override.files:
            found = await self._scan(name)
            if name not in found.models:
                raise failed_to_poll(name)
            yield found.models[name]
            return
        if override.config is None:
            _log.error("files without a configuration were refused", model=name)
            raise failed_to_poll(name)
        async with self._writing:
            path = await asyncio.to_thread(self._overrides.write, name, override.files)
            inside = str(path / "1")
            self._held.add(inside)
        try:
            yield await asyncio.to_thread(repository.read_model, path)
        finally:
            self._held.discard(inside)
            await self._sweep()

    def _directories_in_use(self) -> set[str]:
        return self._supervisor.reconciler.directories_in_use() | self._held

    async def _sweep(self) -> None:
        async with self._writing:
            await asyncio.to_thread(self._overrides.sweep, self._directories_in_use())


def failed_to_poll(name: str) -> InternalError:
    """Return the error for a model that cannot be found or read."""
    return InternalError(
        f"failed to load '{name}', failed to poll from model repository"
    )
