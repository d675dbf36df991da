"""Which of a model's version folders are served."""

from collections.abc import Iterable

from services.core.errors import ConfigError
from services.core.model_config import (
    LatestVersions,
    SpecificVersions,
    VersionPolicy,
)

MAX_VERSION = 2**63 - 1


def versions_in(names: Iterable[str]) -> tuple[int, ...]:
    """Return the versions among the names of a model's subfolders, ascending.

    A version is a positive decimal number; other names, and numbers with leading
    zeros, are no versions and are passed over.
    """
    versions = {
        int(name)
        for name in names
        if name.isascii() and name.isdecimal() and not name.startswith("0")
    }
    return tuple(sorted(version for version in versions if version <= MAX_VERSION))


def served_versions(policy: VersionPolicy, available: Iterable[int]) -> tuple[int, ...]:
    """Return the versions to serve, ascending; () if there are none.

    Args:
        policy: The model's.
        available: The versions that have a folder.
    """
    ascending = sorted(set(available))
    if isinstance(policy, LatestVersions):
        return tuple(ascending[-policy.count :])
    if isinstance(policy, SpecificVersions):
        return tuple(version for version in ascending if version in policy.versions)
    return tuple(ascending)


def require_versions(
    model: str, policy: VersionPolicy, available: Iterable[int]
) -> tuple[int, ...]:
    """Return the versions to serve, at least one.

    Args:
        model: For the message.
        policy: The model's.
        available: The versions that have a folder.

    Raises:
        ConfigError: there is none, in Triton's words.
    """
    served = served_versions(policy, available)
    if not served:
        msg = (
            "at least one version must be available under the version policy of model "
            f"'{model}'"
        )
        raise ConfigError(msg)
    return served
