"""Models that are never evicted: their configuration says so."""

import functools
from typing import Final

from protos.model_config_pb2 import ModelConfig

PINNED_PARAMETER: Final = "nereid_pinned"


@functools.lru_cache(maxsize=1024)
def is_pinned(config: bytes) -> bool:
    """Whether a serialized ModelConfig has the parameter ``nereid_pinned: "true"``."""
    parameters = ModelConfig.FromString(config).parameters
    found = parameters.get(PINNED_PARAMETER)
    return found is not None and found.string_value.lower() == "true"
