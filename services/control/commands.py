"""What is said to workers and routers, and what workers say of model files."""

from dataclasses import dataclass
from typing import TypeAlias

from services.control.events import LoadInstances, UnloadInstances


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


WorkerOrder: TypeAlias = LoadInstances | UnloadInstances | ServeRouters | InspectFile


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


RouterOrder: TypeAlias = AcknowledgeStatistics | CollectStatistics | SetStatistics


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
