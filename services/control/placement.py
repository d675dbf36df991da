"""Which instances of a model go to which worker.

Pure and deterministic: the same workers in any order give the same answer, and an
instance keeps its name whatever other workers there are.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from services.control.missing_backend import no_backend
from services.control.model_registry import (
    DeviceKind,
    PlacedInstance,
    Placement,
    Worker,
)
from services.core.model_config import InstanceGroup, InstanceKind

_NO_LOAD: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The answer of ``place``.

    Attributes:
        instances: By worker id; a worker that gets none is absent.
        problems: One for each group of which not a single instance has a place,
            in words for the client. Groups that have a place are placed anyway.
    """

    instances: Placement
    problems: tuple[str, ...] = ()


def gpus_of(workers: Iterable[Worker], backend: str) -> frozenset[int]:
    """Return the indices of the GPUs on which ``backend`` can run."""
    return frozenset(
        worker.device_index
        for worker in workers
        if worker.device is DeviceKind.GPU and backend in worker.backends
    )


def place(
    *,
    model: str,
    backend: str,
    groups: Sequence[InstanceGroup],
    workers: Iterable[Worker],
    load: Mapping[str, int] = _NO_LOAD,
) -> Placed:
    """Choose a worker for each instance.

    A CPU group's instances are spread over the CPU workers, and over the others
    only if there are none. A GPU group has ``count`` instances on each of its GPUs on
    every host, so that a host more is capacity more; a GPU without a worker is left
    out. A MODEL group goes to GPU workers if
    there are any, else to CPU workers. Among equals the least loaded is next, then
    the one whose id comes first.

    Args:
        model: For messages.
        backend: Only workers that can import it are asked.
        groups: Normalised.
        workers: Everyone who is there.
        load: Instances of other models, by worker id.

    Returns:
        Instances called ``<group name>_<i>``. On GPUs ``i`` counts through the
        GPUs of the group, and ``@<host>`` follows, since hosts have equal GPUs.
    """
    able = sorted(
        (worker for worker in workers if backend in worker.backends),
        key=lambda worker: worker.worker_id,
    )
    if groups and not able:
        return Placed(instances={}, problems=(no_backend(backend),))
    loads = Counter(
        {worker.worker_id: load.get(worker.worker_id, 0) for worker in able}
    )
    instances: dict[str, list[PlacedInstance]] = {}
    problems = []
    for number, group in enumerate(groups):
        chosen = list(_choose(group, able, loads))
        if not chosen and group.count:
            problems.append(_problem(model, group, able))
        for worker_id, name in chosen:
            instance = PlacedInstance(name=name, group=number)
            instances.setdefault(worker_id, []).append(instance)
    return Placed(
        instances={worker_id: tuple(each) for worker_id, each in instances.items()},
        problems=tuple(problems),
    )


def _choose(
    group: InstanceGroup, able: Sequence[Worker], loads: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Yield worker id and instance name; ``loads`` counts them."""
    if group.kind is InstanceKind.GPU:
        for worker, position in _gpu_workers(group, able, loads):
            for i in range(group.count):
                name = f"{group.name}_{position * group.count + i}"
                loads[worker.worker_id] += 1
                yield worker.worker_id, _on_host(name, worker)
        return
    on_gpu = [worker for worker in able if worker.device is DeviceKind.GPU]
    on_cpu = [worker for worker in able if worker.device is DeviceKind.CPU]
    if group.kind is InstanceKind.CPU:
        candidates = on_cpu or on_gpu
    elif group.kind is InstanceKind.MODEL:
        candidates = on_gpu or on_cpu
    else:
        candidates = []
    for i in range(group.count if candidates else 0):
        worker = min(candidates, key=lambda worker: loads[worker.worker_id])
        loads[worker.worker_id] += 1
        yield worker.worker_id, f"{group.name}_{i}"


def _gpu_workers(
    group: InstanceGroup, able: Sequence[Worker], loads: Counter[str]
) -> Iterator[tuple[Worker, int]]:
    """Yield one worker for each of the group's GPUs, and the GPU's position.

    The position must not depend on who is there.
    """
    of_gpu: dict[tuple[str, int], list[Worker]] = {}
    for worker in able:
        index = worker.device_index
        if worker.device is DeviceKind.GPU and (not group.gpus or index in group.gpus):
            of_gpu.setdefault((worker.host, index), []).append(worker)
    for (_, index), workers in sorted(of_gpu.items()):
        worker = min(workers, key=lambda worker: loads[worker.worker_id])
        yield worker, group.gpus.index(index) if group.gpus else index


def _on_host(name: str, worker: Worker) -> str:
    return f"{name}@{worker.host}" if worker.host else name


def _problem(model: str, group: InstanceGroup, able: Sequence[Worker]) -> str:
    who = f"instance group {group.name} of model {model}"
    if group.kind is InstanceKind.AUTO:
        return f"{who} has unexpected kind KIND_AUTO"
    present = sorted(
        {worker.device_index for worker in able if worker.device is DeviceKind.GPU}
    )
    if not present:
        return f"{who} has kind KIND_GPU but no GPUs are available"
    wanted = ", ".join(map(str, group.gpus))
    names = ", ".join(map(str, present))
    return (
        f"{who} specifies invalid or unsupported gpu id {wanted}. "
        f"Available GPUs are: {names}"
    )
