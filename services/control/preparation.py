"""From a model's folder to what can be loaded.

The text is parsed, a worker is asked about the model file where the text is silent,
and the whole is checked: what comes out needs nothing but a place.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from protos.model_config_pb2 import ModelConfig
from services.control import config_completion, config_pbtxt
from services.control.auto_complete import DEFAULT_MAX_BATCH_SIZE
from services.control.config_completion import Draft
from services.control.config_pbtxt import ConfigText
from services.control.ensemble_members import members_of
from services.control.inspections import InspectionFailedError
from services.control.instance_groups import depends_on_devices
from services.control.model_registry import VersionSpec, Worker
from services.control.placement import gpus_of
from services.control.repository import ModelFolder
from services.control.version_policy import served_versions
from services.core.errors import ConfigError
from services.core.model_config_proto import from_proto


class NoVersionError(ConfigError):
    """The version policy leaves nothing to serve."""


class Fleet(Protocol):
    """The workers, as far as preparing needs them."""

    async def inspect(self, *, backend: str, directory: str, config: bytes) -> bytes:
        """Have a worker say what a model file declares; serialized ModelConfigs."""
        ...

    async def known_workers(self) -> tuple[Worker, ...]:
        """Return all workers, once there is one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionSettings:
    """How far configurations are completed.

    Attributes:
        auto_complete: Whether model files are asked (--disable-auto-complete-config).
        max_batch_sizes: Default by backend; "" stands for all others.
    """

    auto_complete: bool
    max_batch_sizes: dict[str, int]

    def max_batch_size(self, backend: str) -> int:
        """Return the default for a model that can batch and does not say."""
        sizes = self.max_batch_sizes
        return sizes.get(backend, sizes.get("", DEFAULT_MAX_BATCH_SIZE))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """A model as it should be served.

    Attributes:
        specs: One for each version; a version that cannot be loaded says so.
        depends_on_workers: Another worker's devices or backends may change them.
    """

    specs: tuple[VersionSpec, ...]
    depends_on_workers: bool


def written_config(folder: ModelFolder, override: str | None) -> ConfigText:
    """Return the configuration as written: in the folder, or in a load request.

    Raises:
        ConfigError: it cannot be read.
    """
    if folder.problem:
        raise ConfigError(folder.problem)
    if override is not None:
        return config_pbtxt.parse_json(override)
    if folder.config is None:
        return config_pbtxt.absent()
    return config_pbtxt.parse(config_pbtxt.decode(folder.config))


async def prepare(
    folder: ModelFolder,
    written: ConfigText,
    fleet: Fleet,
    settings: CompletionSettings,
) -> PreparedModel:
    """Return the versions of a model, ready to be placed.

    Raises:
        NoVersionError: there is no version to serve.
        ConfigError: the configuration contradicts itself or cannot be completed.
    """
    draft = _begin(folder, written, settings)
    refusals: dict[int, str] = {}
    found = None
    if draft.needs_inspection:
        try:
            found = await _inspect(folder, draft, fleet.inspect, refusals)
        except ConfigError as error:
            reason = f"Invalid argument: {error}"
            refused = dict.fromkeys(draft.versions, reason)
            return _refused(folder, draft, refused, depends_on_workers=True)
        if found is None:
            return _refused(folder, draft, refusals)
    depends = depends_on_devices(draft.config)
    workers = await fleet.known_workers() if depends else ()
    try:
        completed = config_completion.finish(
            draft,
            found=found,
            gpus=gpus_of(workers, draft.backend),
            default_max_batch_size=settings.max_batch_size(draft.backend),
        )
    except ConfigError as error:
        if found is None:
            raise
        reason = f"Invalid argument: {error}"
        return _refused(folder, draft, dict.fromkeys(draft.versions, reason))
    specs = _specs(folder, completed.message, draft.versions, refusals)
    return PreparedModel(specs=specs, depends_on_workers=depends)


def _begin(
    folder: ModelFolder, written: ConfigText, settings: CompletionSettings
) -> Draft:
    try:
        return config_completion.begin(
            written,
            directory=folder.name,
            versions=folder.files,
            auto_complete_enabled=settings.auto_complete,
        )
    except ConfigError as error:
        named_right = written.message.name in ("", folder.name)
        if named_right and not _has_version(folder, written):
            raise NoVersionError(str(error)) from error
        raise


def _has_version(folder: ModelFolder, written: ConfigText) -> bool:
    named = ModelConfig(name=folder.name)
    named.version_policy.CopyFrom(written.message.version_policy)
    return bool(served_versions(from_proto(named).version_policy, folder.versions))


async def _inspect(
    folder: ModelFolder,
    draft: Draft,
    inspect: Callable[..., Awaitable[bytes]],
    refusals: dict[int, str],
) -> ModelConfig | None:
    """Ask about the newest version that can be read; note those that cannot."""
    for version in reversed(draft.versions):
        try:
            found = await inspect(
                backend=draft.backend,
                directory=folder.version_directory(version),
                config=draft.config.SerializeToString(),
            )
        except InspectionFailedError as error:
            refusals[version] = str(error)
        else:
            return ModelConfig.FromString(found)
    return None


def _refused(
    folder: ModelFolder,
    draft: Draft,
    refusals: dict[int, str],
    *,
    depends_on_workers: bool = False,
) -> PreparedModel:
    specs = _specs(folder, draft.config, draft.versions, refusals)
    return PreparedModel(specs=specs, depends_on_workers=depends_on_workers)


def _specs(
    folder: ModelFolder,
    message: ModelConfig,
    versions: tuple[int, ...],
    refusals: dict[int, str],
) -> tuple[VersionSpec, ...]:
    config = message.SerializeToString(deterministic=True)
    # Which versions are served beside it makes no difference to a version, nor does
    # to an instance how many others there are.
    own = ModelConfig()
    own.CopyFrom(message)
    own.ClearField("version_policy")
    own_config = own.SerializeToString(deterministic=True)
    own.ClearField("instance_group")
    loaded_config = own.SerializeToString(deterministic=True)
    return tuple(
        VersionSpec(
            model=folder.name,
            version=version,
            config=config,
            backend=message.backend,
            directory=folder.version_directory(version),
            fingerprint=_digest(own_config, folder, version),
            content=_digest(loaded_config, folder, version),
            refusal=refusals.get(version, ""),
            members=() if version in refusals else members_of(message),
        )
        for version in versions
    )


def _digest(config: bytes, folder: ModelFolder, version: int) -> str:
    files = folder.fingerprints.get(version, "")
    where = folder.version_directory(version)
    text = config + f"\0{where}\0{files}".encode(errors="surrogateescape")
    return hashlib.sha256(text).hexdigest()
