"""The check of an ensemble against its members, for the reconciler's specs."""

import functools
from collections.abc import Mapping

from protos.model_config_pb2 import ModelConfig as ModelConfigMessage
from services.control.ensemble_validation import require_members
from services.control.model_registry import Member, VersionSpec
from services.core.errors import ConfigError
from services.core.model_config import ModelConfig
from services.core.model_config_proto import from_proto


def members_of(message: ModelConfigMessage) -> tuple[Member, ...]:
    """Return what the steps of an ensemble call; () if it is none."""
    steps = message.ensemble_scheduling.step
    pairs = ((step.model_name, step.model_version) for step in steps)
    return tuple(
        dict.fromkeys(
            (model, version if version > 0 else None) for model, version in pairs
        )
    )


def check_members(spec: VersionSpec, members: Mapping[Member, VersionSpec]) -> str:
    """Return why the ensemble ``spec`` does not fit its members; "" if it does."""
    configs = {member: _config(each.config) for member, each in members.items()}
    try:
        require_members(_config(spec.config), configs)
    except ConfigError as error:
        return str(error)
    return ""


@functools.lru_cache(maxsize=1024)
def _config(config: bytes) -> ModelConfig:
    return from_proto(ModelConfigMessage.FromString(config))
