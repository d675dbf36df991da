"""The table that routers get: which versions there are and what serves them."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.control.model_registry import Generation, ModelRegistry
from services.control.traffic_split import TrafficSplit
from services.core.lifecycle import ModelState


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRoute:
    """One version of a model.

    Attributes:
        model: Its name.
        version: Its number.
        state: The state of the generation that counts.
        reason: Why it is UNAVAILABLE.
        generation: The one that serves while READY or UNLOADING, or is about to
            serve again, else 0.
        config: A serialized, complete ``inference.ModelConfig``.
        is_returning: It has served, its workers were lost, and others are loading
            it: routers take requests and keep them until it is there.
        is_routable: False if no complete configuration exists: routers are told
            of the model, not of the version.
    """

    model: str
    version: int
    state: ModelState
    reason: str = ""
    generation: int = 0
    config: bytes = b""
    is_returning: bool = False
    is_routable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTable:
    """All versions, by name and number.

    Attributes:
        revision: Higher than that of every earlier table.
        ready: Whether the server as a whole is ready.
        versions: Ordered by model and version.
        splits: How requests without a version are shared out, by model.
        loadable: Models that are loaded when somebody asks for them.
    """

    revision: int
    ready: bool
    versions: tuple[VersionRoute, ...] = ()
    splits: Mapping[str, TrafficSplit] = field(default_factory=dict)
    loadable: frozenset[str] = frozenset()

    def equals_but_for_revision(self, other: "RouteTable") -> bool:
        """Whether a router that has ``other`` has nothing to learn."""
        return dataclasses.replace(self, revision=other.revision) == other


def routes_of(registry: ModelRegistry) -> tuple[VersionRoute, ...]:
    """Return the route of every version.

    A READY generation counts most, since it answers whatever happens beside it;
    without one the newest counts.
    """
    return tuple(
        _route(registry.serving(key) or registry.of(key)[-1])
        for key in registry.versions()
    )


def _route(generation: Generation) -> VersionRoute:
    serves = generation.state in (ModelState.READY, ModelState.UNLOADING)
    return VersionRoute(
        model=generation.spec.model,
        version=generation.spec.version,
        state=generation.state,
        reason=generation.reason,
        generation=generation.number if serves or generation.is_returning else 0,
        config=generation.spec.config,
        is_returning=generation.is_returning,
        is_routable=not generation.spec.refusal,
    )
