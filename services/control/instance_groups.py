"""Instance groups as the configuration endpoint shows them: nothing left open.

Source: Triton's NormalizeInstanceGroup, and the configurations that the real one
answered with.
"""

from collections.abc import Collection, Mapping
from typing import Final

from protos import model_config_pb2 as pb

_Group = pb.ModelInstanceGroup

PREFERRED_KINDS: Final[Mapping[str, int]] = {
    "identity": _Group.KIND_CPU,
    "python": _Group.KIND_CPU,
}
"""Where a backend runs if the configuration has no instance group at all."""

CPU_COUNTS: Final[Mapping[str, int]] = {"onnxruntime": 2, "tensorflow": 2}
"""Instances of a CPU group without a count; 1 for other backends."""


def normalise(config: pb.ModelConfig, gpus: Collection[int]) -> pb.ModelConfig:
    """Return ``config`` with complete instance groups.

    Each group has a name (``<model>_<i>``, but ``<model>`` for the one that was not
    written), a kind other than AUTO, a count, and the GPUs if its kind is GPU. An
    ensemble has no groups. Whether the devices exist is for the placement to say.

    Args:
        config: With name and backend filled in; it is not changed.
        gpus: Indices of the GPUs that the backend can use somewhere; empty: AUTO
            becomes CPU, and a GPU group without a list keeps none.
    """
    complete = pb.ModelConfig()
    complete.CopyFrom(config)
    if complete.HasField("ensemble_scheduling"):
        return complete
    if not complete.instance_group:
        kind = PREFERRED_KINDS.get(complete.backend, _Group.KIND_AUTO)
        group = complete.instance_group.add(name=complete.name)
        group.kind = _Group.Kind.ValueType(kind)
    for i, group in enumerate(complete.instance_group):
        _complete(group, f"{complete.name}_{i}", complete.backend, gpus)
    return complete


def depends_on_devices(config: pb.ModelConfig) -> bool:
    """Whether ``normalise`` gives another answer when there are other GPUs."""
    if config.HasField("ensemble_scheduling"):
        return False
    if not config.instance_group:
        return config.backend not in PREFERRED_KINDS
    return any(
        group.kind == _Group.KIND_AUTO
        or (group.kind == _Group.KIND_GPU and not group.gpus)
        for group in config.instance_group
    )


def _complete(group: _Group, name: str, backend: str, gpus: Collection[int]) -> None:
    if not group.name:
        group.name = name
    if group.kind == _Group.KIND_AUTO:
        is_on_gpu = bool(gpus) and all(gpu in gpus for gpu in group.gpus)
        group.kind = _Group.KIND_GPU if is_on_gpu else _Group.KIND_CPU
        if not is_on_gpu:
            # The list named the GPUs to prefer, and they are not there.
            del group.gpus[:]
    if group.count == 0:
        is_on_cpu = group.kind == _Group.KIND_CPU
        group.count = CPU_COUNTS.get(backend, 1) if is_on_cpu else 1
    if group.kind == _Group.KIND_GPU and not group.gpus:
        group.gpus.extend(sorted(gpus))
