"""The placement rule, for specs as the reconciler has them."""

import functools
from collections.abc import Mapping, Sequence

from protos.model_config_pb2 import ModelConfig as ModelConfigMessage
from services.control.model_registry import VersionSpec, Worker
from services.control.placement import Placed, place
from services.core.model_config import InstanceGroup
from services.core.model_config_proto import from_proto


def place_version(
    spec: VersionSpec, workers: Sequence[Worker], load: Mapping[str, int]
) -> Placed:
    """Choose workers by the instance groups of the spec's configuration."""
    return place(
        model=spec.model,
        backend=spec.backend,
        groups=_groups(spec.config),
        workers=workers,
        load=load,
    )


@functools.lru_cache(maxsize=1024)
def _groups(config: bytes) -> tuple[InstanceGroup, ...]:
    return from_proto(ModelConfigMessage.FromString(config)).instance_groups
