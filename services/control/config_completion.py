"""From a written configuration to the one that is served.

Two steps, because the middle one is not ours: ``begin`` says whether the model file
has to be asked for its tensors, a worker is asked, and ``finish`` takes the answer.
Both are pure.

Typical use::

    draft = begin(parse(text), directory="m", versions={1: {"model.onnx"}})
    found = ask_a_worker(draft.config) if draft.needs_inspection else None
    completed = finish(draft, found=found, gpus=gpus_of(workers, draft.backend))
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from protos import model_config_pb2 as pb
from services.control import auto_complete, instance_groups
from services.control.config_pbtxt import ConfigText
from services.control.config_validation import (
    require_consistent,
    require_directory_name,
)
from services.control.version_policy import require_versions
from services.core.model_config import FieldError, ModelConfig
from services.core.model_config_proto import from_proto


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A configuration as far as text and folders tell.

    Attributes:
        written: What was written, for the places of errors.
        config: Name, backend, platform and file name are filled in. Not to be
            changed; it is what InspectModel wants.
        versions: To be served, ascending, at least one.
        needs_inspection: The model file has to be asked for its tensors.
    """

    written: ConfigText
    config: pb.ModelConfig
    versions: tuple[int, ...]
    needs_inspection: bool

    @property
    def backend(self) -> str:
        """What executes the model; "" for an ensemble."""
        return self.config.backend

    @property
    def inspected_version(self) -> int:
        """The version whose file stands for all: the newest one served."""
        return self.versions[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A configuration that can be served.

    Attributes:
        message: With nothing left to default; what travels and what clients see.
        config: The same, for code to read.
        versions: To be served, ascending, at least one.
    """

    message: pb.ModelConfig
    config: ModelConfig
    versions: tuple[int, ...]


def begin(
    written: ConfigText,
    *,
    directory: str,
    versions: Mapping[int, Collection[str]],
    auto_complete_enabled: bool = True,
) -> Draft:
    """Return what text and folders tell.

    Args:
        written: From ``config_pbtxt``: ``parse``, ``parse_json``, or ``absent`` for
            a model without a config.pbtxt.
        directory: The name of the model's folder.
        versions: By version, the names of what its folder contains.
        auto_complete_enabled: False: the model file is never asked
            (--disable-auto-complete-config).

    Raises:
        ConfigError: a contradiction, with line and column if its field is written;
            an unknown backend; or no version to serve.
    """
    config = pb.ModelConfig()
    config.CopyFrom(written.message)
    try:
        require_directory_name(config.name, directory)
        config.name = directory
        policy = from_proto(config).version_policy
        served = require_versions(directory, policy, versions)
        auto_complete.fill_backend(config, versions[served[-1]])
    except FieldError as error:
        raise written.locate(error) from None
    needs_inspection = auto_complete.needs_inspection(config)
    return Draft(
        written=written,
        config=config,
        versions=served,
        needs_inspection=auto_complete_enabled and needs_inspection,
    )


def finish(
    draft: Draft,
    *,
    found: pb.ModelConfig | None,
    gpus: Collection[int],
    default_max_batch_size: int = auto_complete.DEFAULT_MAX_BATCH_SIZE,
) -> Completed:
    """Return the configuration that is served.

    Args:
        draft: From ``begin``.
        found: ModelInspected.found, if ``draft.needs_inspection``; else None.
        gpus: Indices of the GPUs that the backend can use on some worker; see
            ``instance_groups.depends_on_devices`` and ``placement.gpus_of``.
        default_max_batch_size: From --backend-config.

    Raises:
        ConfigError: a contradiction, with line and column if its field is written.
    """
    message = pb.ModelConfig()
    message.CopyFrom(draft.config)
    try:
        if found is not None and (
            message.backend in auto_complete.SELF_COMPLETING_BACKENDS
        ):
            message.CopyFrom(found)
        elif found is not None:
            auto_complete.fill_tensors(message, found, default_max_batch_size)
        auto_complete.fill_defaults(message)
        message = instance_groups.normalise(message, gpus)
        config = from_proto(message)
        require_consistent(config)
    except FieldError as error:
        raise draft.written.locate(error) from None
    return Completed(message=message, config=config, versions=draft.versions)
