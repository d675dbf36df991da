"""What is said to workers and routers, and what workers say of model files."""

from dataclasses import dataclass
from typing import TypeAlias

from services.control.events import LoadInstances, UnloadInstances
from services.control.trace_settings import TraceSettings
from services.core.logs import LogSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRouters:
    """Keep one stream from each instance to each of these routers, and no others."""

    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectFile:
    """Say what a model file declares.

    Attributes:
        number: Comes back with the answer.
        backend: That reads the file.
        directory: ``<repository>/<model>/<version>``.
        config: A serialized ``inference.ModelConfig``, as far as it is known.
    """

    number: int
    backend: str
    directory: str
    config: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLogs:
    """Write the log by these settings from now on."""

    settings: LogSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReadiness:
    """Say whether all instances of a generation are ready.

    Attributes:
        number: Comes back with the answer.
        generation: Which.
    """

    number: int
    generation: int


WorkerOrder: TypeAlias = (
    LoadInstances
    | UnloadInstances
    | ServeRouters
    | InspectFile
    | SetLogs
    | CheckReadiness
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeStatistics:
    """The reports up to this number are safe."""

    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectStatistics:
    """Report at once; the number comes back with the report."""

    collection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStatistics:
    """What to count.

    Attributes:
        latency_distributions: Besides the counters, how many took how long.
    """

    latency_distributions: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTraces:
    """Sample requests by these settings from now on, and say so.

    Attributes:
        revision: Comes back with the acknowledgement.
        settings: All of them.
    """

    revision: int
    settings: TraceSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseDemand:
    """A model that requests wait for cannot be loaded, for this reason."""

    model: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStored:
    """The state of a sequence is safe, up to this step."""

    key: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFound:
    """What is kept of a sequence; None: nothing."""

    key: str
    data: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTraces:
    """Count requests, or no longer count them, on the way to the next trace.

    Attributes:
        session: Of the trace settings.
        by: How many more; below 0: fewer.
    """

    session: int
    by: int


RouterOrder: TypeAlias = (
    AcknowledgeStatistics
    | CollectStatistics
    | SetStatistics
    | SetLogs
    | MoveTraces
    | SetTraces
    | RefuseDemand
    | StateStored
    | StateFound
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInspected:
    """The answer to ``InspectFile``.

    Attributes:
        number: Of the question.
        found: A serialized ``inference.ModelConfig`` with the file's tensors.
        error: Not empty: the file could not be read, for this reason.
    """

    number: int
    found: bytes = b""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessChecked:
    """The answer to ``CheckReadiness``."""

    number: int
    is_ready: bool
