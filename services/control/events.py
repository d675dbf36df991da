"""What the reconciler is told, and what it asks for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from services.control.model_registry import (
    Generation,
    MemoryUse,
    PlacedInstance,
    VersionSpec,
    Worker,
)
from services.control.route_table import RouteTable
from services.control.traffic_split import TrafficSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDesired:
    """A model should be served in these versions and no others.

    ``specs`` are all of one model; versions that are not among them are unloaded.
    """

    model: str
    specs: tuple[VersionSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDropped:
    """A model should no longer be served."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRefused:
    """A model should be served, but nobody can tell how: what serves stays."""

    model: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined:
    """A worker dialled in, for the first time or again.

    Attributes:
        worker: Who.
        generations: The numbers of what it serves already.
        predecessors: Workers that are gone, and whose place it takes.
        described: These generations as an earlier control process had them loaded;
            what the worker has of each is in ``former``.
    """

    worker: Worker
    generations: frozenset[int] = frozenset()
    predecessors: frozenset[str] = frozenset()
    described: tuple[Generation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeft:
    """A worker is gone, and what it had loaded with it."""

    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancesLoaded:
    """A worker serves all its instances of a generation.

    Attributes:
        worker_id: Who.
        generation: Its number.
        memory: What they took.
    """

    worker_id: str
    generation: int
    memory: MemoryUse = MemoryUse()  # noqa: RUF009  frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancesFailed:
    """A worker could not load its instances of a generation."""

    worker_id: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancesUnloaded:
    """A worker has none of a generation any more."""

    worker_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterJoined:
    """A router dialled in; it has applied nothing of what we say yet.

    Attributes:
        router_id: Who.
        revision: Of the table that it works by, which an earlier control process
            may have sent; 0: none.
    """

    router_id: str
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLeft:
    """A router is gone."""

    router_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesApplied:
    """A router works by the route table of this revision."""

    router_id: str
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutersOverdue:
    """Routers had their time: whoever has not applied ``revision`` is not asked."""

    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSplitsSet:
    """How requests without a version are shared out, of all models that say so."""

    splits: Mapping[str, TrafficSplit]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsLoadable:
    """Models that are loaded when somebody asks for them; all that there are."""

    models: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What an earlier control process had placed, read back from the store.

    The versions are kept for workers that come back and still serve them; nobody
    else is told to load them before they are desired anew.
    """

    generations: tuple[Generation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOver:
    """No more worker is expected to come back with restored versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUpOver:
    """Whatever had to be loaded at the start is loaded, or has failed."""


Event: TypeAlias = (
    ModelDesired
    | ModelDropped
    | ModelRefused
    | WorkerJoined
    | WorkerLeft
    | InstancesLoaded
    | InstancesFailed
    | InstancesUnloaded
    | RouterJoined
    | RouterLeft
    | RoutesApplied
    | RoutersOverdue
    | TrafficSplitsSet
    | ModelsLoadable
    | Restored
    | RecoveryOver
    | StartUpOver
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadInstances:
    """Tell a worker to load instances of a generation."""

    worker_id: str
    generation: int
    spec: VersionSpec
    instances: tuple[PlacedInstance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloadInstances:
    """Tell a worker to drain and drop what it has of a generation."""

    worker_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRoutes:
    """Send every router this table."""

    table: RouteTable


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadEnded:
    """A generation became READY, or failed if there is a ``reason``."""

    generation: int
    spec: VersionSpec
    reason: str = ""


Action: TypeAlias = LoadInstances | UnloadInstances | PublishRoutes | LoadEnded
