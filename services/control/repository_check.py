"""What is wrong with the models of a repository, without serving them."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from google.protobuf import text_format

from protos.model_config_pb2 import ModelConfig
from services.control.ensemble_members import check_members
from services.control.model_registry import Member, VersionKey, VersionSpec
from services.control.placing import place_version
from services.control.preparation import (
    CompletionSettings,
    Fleet,
    prepare,
    written_config,
)
from services.control.repository import DUPLICATE, ModelFolder, Survey
from services.core.errors import ServingError


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedModel:
    """What can be said of one model.

    Attributes:
        name: Of its folder.
        config: Its completed configuration as text; "" if there is none.
        versions: That would be served.
        errors: Why it cannot be served, or not in all versions.
        notes: What could not be checked here.
    """

    name: str
    config: str = ""
    versions: tuple[int, ...] = ()
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Trial(Fleet, Protocol):
    """A fleet that loads models for the sake of it."""

    async def try_to_load(
        self, model: str, specs: tuple[VersionSpec, ...]
    ) -> Mapping[VersionKey, str]:
        """Load a model and unload it again; return why versions failed."""
        ...


@dataclass(slots=True, kw_only=True)
class RepositoryCheck:
    """Checks every model of a survey.

    Attributes:
        found: What lies in the repositories.
        fleet: Reads model files and loads them.
        completion: How far configurations are completed.
        loads: Whether models are loaded; else only what their configurations leave
            open is read from their files.
    """

    found: Survey
    fleet: Trial
    completion: CompletionSettings
    loads: bool = True
    _prepared: dict[str, tuple[VersionSpec, ...]] = field(default_factory=dict)

    async def run(self) -> AsyncIterator[CheckedModel]:
        """Yield what there is to say of each model, ensembles last."""
        ensembles = []
        for name in self.found.names:
            if name in self.found.duplicates:
                yield CheckedModel(name=name, errors=(DUPLICATE,))
                continue
            checked = await self._check(self.found.models[name])
            if any(spec.members for spec in self._prepared.get(name, ())):
                ensembles.append(checked)
            else:
                yield checked
        for checked in ensembles:
            yield replace(checked, errors=self._ensemble_errors(checked.name))

    async def _check(self, folder: ModelFolder) -> CheckedModel:
        try:
            written = written_config(folder, None)
            prepared = await prepare(folder, written, self.fleet, self.completion)
        except ServingError as error:
            return CheckedModel(name=folder.name, errors=(str(error),))
        specs = prepared.specs
        self._prepared[folder.name] = specs
        errors = [_of_version(spec, spec.refusal) for spec in specs if spec.refusal]
        sound = tuple(spec for spec in specs if not spec.refusal and not spec.members)
        notes: list[str] = []
        if sound and self.loads:
            more, notes = await self._load(folder.name, sound)
            errors += more
        return CheckedModel(
            name=folder.name,
            config=_text(specs[-1].config),
            versions=tuple(spec.version for spec in specs),
            errors=tuple(errors),
            notes=tuple(notes),
        )

    async def _load(
        self, name: str, specs: tuple[VersionSpec, ...]
    ) -> tuple[list[str], list[str]]:
        """Return errors and notes."""
        try:
            workers = await self.fleet.known_workers()
        except ServingError as error:
            return [str(error)], []
        backend = specs[0].backend
        if not any(backend in worker.backends for worker in workers):
            return [f"no backend '{backend}' is installed here"], []
        problems = place_version(specs[0], workers, {}).problems
        if problems:
            return [], [f"not loaded: {problem}" for problem in problems]
        try:
            failures = await self.fleet.try_to_load(name, specs)
        except ServingError as error:
            return [str(error)], []
        by_key = {spec.key: spec for spec in specs}
        return [_of_version(by_key[key], failures[key]) for key in sorted(failures)], []

    def _ensemble_errors(self, name: str) -> tuple[str, ...]:
        spec = self._prepared[name][-1]
        members: dict[Member, VersionSpec] = {}
        errors = []
        for model, version in spec.members:
            offered = [
                each
                for each in self._prepared.get(model, ())
                if version in (None, each.version)
            ]
            if offered:
                members[model, version] = offered[-1]
            else:
                wanted = "" if version is None else f" version {version}"
                errors.append(f"its member '{model}'{wanted} cannot be served")
        problem = "" if errors else check_members(spec, members)
        return tuple(errors) if errors or not problem else (problem,)


def _of_version(spec: VersionSpec, reason: str) -> str:
    return f"version {spec.version}: {reason}"


def _text(config: bytes) -> str:
    return text_format.MessageToString(ModelConfig.FromString(config))
