"""What control knows of workers, model versions and their generations.

Frozen records and one container of them. Only ``advance`` changes the state of a
generation, and only by the table of ``services.core.lifecycle``.
"""

import dataclasses
import enum
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from services.core.lifecycle import ModelEvent, ModelState, next_state

VersionKey: TypeAlias = tuple[str, int]
"""The name of a model and the number of a version."""

Member: TypeAlias = tuple[str, int | None]
"""What a step of an ensemble calls: a model, and a version or the newest one."""

UNLOADED: Final = "unloaded"
"""Triton's reason for a version that somebody unloaded."""


class DeviceKind(enum.Enum):
    """What a worker computes on."""

    CPU = "cpu"
    GPU = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker process, which has one device.

    Attributes:
        worker_id: Its own choice, unique, the same as long as the process lives.
        host: Where it runs.
        process_id: On that host.
        started_ms: When the process started, since 1970; 0 if it did not say.
        device: CPU or GPU.
        device_index: The GPU's index on its host; 0 for a CPU.
        device_uuid: The GPU's; "" for a CPU or if it is not known.
        memory_bytes: Of the device; 0 if it is not known.
        backends: That can be imported there, by Triton's names.
    """

    worker_id: str
    host: str = ""
    process_id: int = 0
    started_ms: int = 0
    device: DeviceKind = DeviceKind.CPU
    device_index: int = 0
    device_uuid: str = ""
    memory_bytes: int = 0
    backends: frozenset[str] = frozenset()

    @property
    def process(self) -> str:
        """Tells its process from any other, also from one before it of the same id."""
        return f"{self.worker_id} {self.process_id} {self.started_ms}"

    def succeeds(self, process: str) -> bool:
        """Whether ``process`` had this id before this one."""
        return process != self.process and process.rsplit(" ", 2)[0] == self.worker_id

    def replaces(self, other: "Worker") -> bool:
        """Whether this is the successor of ``other`` on the same device."""
        return self.worker_id != other.worker_id and (
            (self.host, self.device, self.device_index, self.device_uuid)
            == (other.host, other.device, other.device_index, other.device_uuid)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What one worker's instances of a generation took when they were loaded.

    Attributes:
        cpu_bytes: In the processes of the worker.
        gpu_bytes: On its device.
        gpu_index: Of that device.
    """

    cpu_bytes: int = 0
    gpu_bytes: int = 0
    gpu_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedInstance:
    """One instance of a version, on the worker that a mapping names.

    Attributes:
        name: As Triton names it; unique in a generation.
        group: An index into the configuration's instance groups.
    """

    name: str
    group: int


Placement: TypeAlias = Mapping[str, tuple[PlacedInstance, ...]]
"""Instances by worker id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpec:
    """A version as it should be served.

    Attributes:
        model: Its name.
        version: Its number, > 0.
        config: A serialized, complete ``inference.ModelConfig``.
        backend: What executes it.
        directory: ``<repository>/<model>/<version>``, absolute.
        fingerprint: Equal for equal files and an equal configuration, the version
            policy left out, and only then.
        refusal: Not empty: it can never be loaded, for this reason.
        content: As ``fingerprint``, the instance groups left out as well; "" if it is
            not known: workers share instances of equal content.
        members: What an ensemble's steps call; () for everything that a worker
            executes.
    """

    model: str
    version: int
    config: bytes
    backend: str
    directory: str
    fingerprint: str
    refusal: str = ""
    content: str = ""
    members: tuple[Member, ...] = ()

    @property
    def key(self) -> VersionKey:
        """What the generations of one version share."""
        return (self.model, self.version)

    def is_loaded_like(self, other: "VersionSpec") -> bool:
        """Whether what was loaded for ``other`` serves this spec as well."""
        return (self.fingerprint, self.directory, self.refusal) == (
            other.fingerprint,
            other.directory,
            other.refusal,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One loading of a version.

    Attributes:
        number: Unique for ever, and higher for later ones.
        spec: What is loaded.
        state: By the table of ``services.core.lifecycle``.
        reason: Why it is UNAVAILABLE.
        placed: Who has been told to load it and has not said it is gone.
        loaded: Those of ``placed`` who said that they serve it.
        memory: What it took on each of them, as far as they said.
        former: Instances that workers had when they were lost. One that comes
            back and still serves them may keep them.
        refused: Workers that could not load it while others could.
        failures: How often a worker could not load it.
        is_restored: An earlier process had it, and nothing has become of it since.
        was_ready: It has served before: routers may keep requests for it while it
            is loaded again.
        is_failed: Not to be tried again unless somebody asks.
        lacks_device: Failed only because no worker suits: a new one may.
        retire_revision: UNLOADING: workers are told once the routers have
            applied this route table; 0: it is not known yet.
        is_draining: UNLOADING: workers have been told.
    """

    number: int
    spec: VersionSpec
    state: ModelState = ModelState.UNKNOWN
    reason: str = ""
    placed: Placement = field(default_factory=dict)
    loaded: frozenset[str] = frozenset()
    memory: Mapping[str, MemoryUse] = field(default_factory=dict)
    former: Placement = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    failures: int = 0
    is_restored: bool = False
    was_ready: bool = False
    is_failed: bool = False
    lacks_device: bool = False
    retire_revision: int = 0
    is_draining: bool = False

    @property
    def is_returning(self) -> bool:
        """Whether routers keep requests for it: it has served, and is loaded again.

        Never an ensemble: while it is LOADING it lacks a member, and of that one
        routers have nothing.
        """
        is_loading = self.state is ModelState.LOADING
        return self.was_ready and is_loading and not self.spec.members

    @property
    def instance_names(self) -> frozenset[str]:
        """The names of the instances that are placed."""
        return frozenset(
            instance.name for places in self.placed.values() for instance in places
        )

    @property
    def memory_usage(self) -> tuple[tuple[str, int, int], ...]:
        """Memory by Triton's kind ("CPU", "GPU") and device, in bytes; none empty."""
        total = Counter[tuple[str, int]]()
        for worker_id in self.loaded & self.memory.keys():
            use = self.memory[worker_id]
            total["CPU", 0] += use.cpu_bytes
            total["GPU", use.gpu_index] += use.gpu_bytes
        return tuple(
            (kind, device, size)
            for (kind, device), size in sorted(total.items())
            if size
        )

    @property
    def is_unloaded(self) -> bool:
        """Whether it is over because nobody wanted it any more."""
        return self.state is ModelState.UNAVAILABLE and self.reason == UNLOADED

    @property
    def is_wanted_on_workers(self) -> bool:
        """Whether instances of it should live."""
        return not self.is_failed and self.state in (
            ModelState.LOADING,
            ModelState.READY,
            ModelState.UNAVAILABLE,
        )

    def with_worker(
        self, worker_id: str, instances: tuple[PlacedInstance, ...]
    ) -> "Generation":
        """Return it with ``instances`` placed on a worker, not yet loaded."""
        return dataclasses.replace(
            self,
            placed={**self.placed, worker_id: instances},
            loaded=self.loaded - {worker_id},
            memory={k: v for k, v in self.memory.items() if k != worker_id},
            former={k: v for k, v in self.former.items() if k != worker_id},
        )

    def without_worker(self, worker_id: str, *, remember: bool) -> "Generation":
        """Return it without a worker; ``remember`` what it had for its return."""
        placed = {k: v for k, v in self.placed.items() if k != worker_id}
        former = dict(self.former)
        if remember and worker_id in self.placed:
            former[worker_id] = self.placed[worker_id]
        return dataclasses.replace(
            self, placed=placed, loaded=self.loaded - {worker_id}, former=former
        )


class ModelRegistry:
    """All generations there are, by number and by version."""

    def __init__(self) -> None:
        """Begin with none."""
        self._generations: dict[int, Generation] = {}
        self._by_version: dict[VersionKey, dict[int, Generation]] = {}

    def __iter__(self) -> Iterator[Generation]:
        """Yield the generations, oldest first, as they were at the call."""
        return iter(sorted(self._generations.values(), key=_number))

    def get(self, number: int) -> Generation | None:
        """Return the generation with this number, if there is one."""
        return self._generations.get(number)

    def put(self, generation: Generation) -> Generation:
        """Keep ``generation`` in the place of the one with its number."""
        number, key = generation.number, generation.spec.key
        self._generations[number] = generation
        self._by_version.setdefault(key, {})[number] = generation
        return generation

    def remove(self, number: int) -> None:
        """Forget a generation."""
        key = self._generations.pop(number).spec.key
        del self._by_version[key][number]
        if not self._by_version[key]:
            del self._by_version[key]

    def advance(
        self,
        generation: Generation,
        event: ModelEvent,
        *,
        reason: str = "",
        is_failed: bool = False,
        lacks_device: bool = False,
    ) -> Generation:
        """Let ``event`` happen to a generation and keep the result.

        Raises:
            IllegalTransitionError: it cannot happen in the generation's state.
        """
        return self.put(
            dataclasses.replace(
                generation,
                state=next_state(generation.state, event),
                reason=reason,
                is_failed=is_failed,
                lacks_device=lacks_device,
                is_restored=False,
            )
        )

    def of(self, key: VersionKey) -> list[Generation]:
        """Return the generations of a version, oldest first."""
        return sorted(self._by_version.get(key, {}).values(), key=_number)

    def serving(self, key: VersionKey) -> Generation | None:
        """Return the one generation of a version that is READY, if any."""
        for generation in self._by_version.get(key, {}).values():
            if generation.state is ModelState.READY:
                return generation
        return None

    def versions(self) -> list[VersionKey]:
        """Return the versions that have generations, by name and number."""
        return sorted(self._by_version)

    def versions_of(self, model: str) -> list[VersionKey]:
        """Return the versions of a model that have generations, by number."""
        return sorted(key for key in self._by_version if key[0] == model)

    def contested(self) -> list[VersionKey]:
        """Return the versions that have more than one generation."""
        return [key for key, each in self._by_version.items() if len(each) > 1]

    def load(self) -> Counter[str]:
        """Return how many instances each worker has."""
        load = Counter[str]()
        for generation in self._generations.values():
            for worker_id, instances in generation.placed.items():
                load[worker_id] += len(instances)
        return load


def _number(generation: Generation) -> int:
    return generation.number
