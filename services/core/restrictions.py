"""Parts of the API that only those may use who know a header. Pure.

Source: Triton's ``--http-restricted-api`` and ``--grpc-restricted-protocol``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

# Before the names of gRPC's headers.
GRPC_HEADER_PREFIX: Final = "triton-grpc-protocol-"
# The gateway puts it on every client's gRPC call, whatever the client sends. On the
# routers' internal address it tells clients from those who start, watch and serve us.
GATEWAY_HEADER: Final = "nereid-gateway"

_SHARED_MEMORY: Final = tuple(
    f"{kind}SharedMemory{verb}"
    for kind in ("System", "Cuda")
    for verb in ("Status", "Register", "Unregister")
)
# The methods of each part, by the names that gRPC and the gateway have for them.
CATEGORIES: Final[Mapping[str, tuple[str, ...]]] = {
    "health": ("ServerLive", "ServerReady", "ModelReady", "Check", "Watch"),
    "metadata": ("ServerMetadata", "ModelMetadata"),
    "inference": (
        "ModelInfer",
        "ModelStreamInfer",
        "ModelGenerate",
        "ModelGenerateStream",
    ),
    "shared-memory": _SHARED_MEMORY,
    "model-config": ("ModelConfig",),
    "model-repository": (
        "RepositoryIndex",
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        # Who gets which version is the repository's business too.
        "TrafficSetting",
        "TrafficSettingGet",
        "TrafficSettingUpdate",
    ),
    "statistics": ("ModelStatistics",),
    "trace": ("TraceSetting", "TraceSettingGet", "TraceSettingUpdate"),
    "logging": ("LogSettings", "LogSettingsGet", "LogSettingsUpdate"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """What a request must carry.

    Attributes:
        header: The name, as the flag has it.
        value: What it must be.
    """

    header: str
    value: str


def parse_restrictions(
    flags: Iterable[str], header_prefix: str = ""
) -> Mapping[str, Restriction]:
    """Return the restrictions by method.

    Args:
        flags: Each ``CATEGORY,...:HEADER=VALUE``.
        header_prefix: Put before every header.

    Raises:
        ValueError: a flag of another form, an unknown category, or one that is
            named twice.
    """
    found: dict[str, Restriction] = {}
    named: set[str] = set()
    for flag in flags:
        categories, colon, setting = flag.partition(":")
        header, equals, value = setting.partition("=")
        if not (categories and colon and header and equals and value):
            raise ValueError(f"expected CATEGORY,...:HEADER=VALUE, got '{flag}'")
        restriction = Restriction(header=header_prefix + header, value=value)
        for category in categories.split(","):
            if category not in CATEGORIES:
                known = ", ".join(CATEGORIES)
                raise ValueError(f"unknown API '{category}', known are {known}")
            if category in named:
                raise ValueError(f"API '{category}' is restricted twice")
            named.add(category)
            found |= dict.fromkeys(CATEGORIES[category], restriction)
    return found
