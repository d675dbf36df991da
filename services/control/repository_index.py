"""The repository index: every model there is, and how its versions are.

Source: Triton's model repository extension, and the answers of the real one: a
model that was never loaded has only a name.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from services.control.repository import DUPLICATE, Survey
from services.control.route_table import VersionRoute
from services.core.lifecycle import ModelState


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One line of the index; what is not known is empty."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


def repository_index(
    found: Survey,
    routes: Iterable[VersionRoute],
    problems: Mapping[str, str],
    *,
    without_version: Collection[str] = (),
    only_ready: bool = False,
) -> list[IndexEntry]:
    """Return the index, by name and version.

    Args:
        found: What lies in the repositories.
        routes: All versions that control knows.
        problems: Models that could not be prepared, with the reasons.
        without_version: Models that are known and have no version at all.
        only_ready: Leave out what cannot infer now.
    """
    versions: dict[str, list[VersionRoute]] = {}
    for route in routes:
        versions.setdefault(route.model, []).append(route)
    entries: list[IndexEntry] = []
    for name in sorted({*found.names, *versions, *problems}):
        if name in versions:
            entries += map(_version_entry, versions[name])
        elif name in found.duplicates:
            entries.append(_unavailable(name, DUPLICATE))
        elif name in problems:
            entries.append(_unavailable(name, problems[name]))
        elif name not in without_version:
            entries.append(IndexEntry(name=name))
    ready = ModelState.READY.value
    return [each for each in entries if not only_ready or each.state == ready]


def _version_entry(route: VersionRoute) -> IndexEntry:
    return IndexEntry(
        name=route.model,
        version=str(route.version),
        state=route.state.value,
        reason=route.reason,
    )


def _unavailable(name: str, reason: str) -> IndexEntry:
    return IndexEntry(name=name, state=ModelState.UNAVAILABLE.value, reason=reason)
