"""The placement rule, for specs as the reconciler has them."""

import functools
from collections.abc import Mapping, Sequence

from protos.model_config_pb2 import ModelConfig as ModelConfigMessage
from services.control.model_registry import Placement, VersionSpec, Worker
from services.control.placement import place
from services.core.errors import ConfigError
from services.core.model_config import InstanceGroup
from services.core.model_config_proto import from_proto


def place_version(
    spec: VersionSpec, workers: Sequence[Worker], load: Mapping[str, int]
) -> Placement:
    """Choose workers by the instance groups of the spec's configuration.

    Raises:
        ConfigError: an instance group has no place.
    """
    placed = place(
        model=spec.model,
        backend=spec.backend,
        groups=_groups(spec.config),
        workers=workers,
        load=load,
    )
    if placed.problems:
        raise ConfigError(placed.problems[0])
    return placed.instances


@functools.lru_cache(maxsize=1024)
def _groups(config: bytes) -> tuple[InstanceGroup, ...]:
    return from_proto(ModelConfigMessage.FromString(config)).instance_groups
