"""The GPUs of a host, and which of them a process may see."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or a MIG slice of one.

    Attributes:
        uuid: NVML's, by which CUDA_VISIBLE_DEVICES may name it.
        name: Of the product; empty if it is not known.
        memory_bytes: In all; 0 if it is not known.
        compute_capability: As in "9.0"; empty if it is not known.
    """

    uuid: str
    name: str = ""
    memory_bytes: int = 0
    compute_capability: str = ""


def visible_gpus(gpus: Sequence[Gpu], variable: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order.

    What comes out is numbered by CUDA, by ``--device`` and by a configuration's
    ``gpus``: the first is number 0.

    Args:
        gpus: Of the host, as ``nvidia-smi`` numbers them.
        variable: Indices and UUIDs (also their beginnings) separated by commas,
            ended by the first that is invalid; None if it is not set.

    Source:
        "CUDA Environment Variables" in the CUDA C++ Programming Guide.
    """
    if variable is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for word in variable.split(","):
        gpu = _named(word.strip(), gpus)
        if gpu is None or gpu in chosen:
            break
        chosen.append(gpu)
    return tuple(chosen)


def _named(word: str, gpus: Sequence[Gpu]) -> Gpu | None:
    if word.isdecimal():
        return gpus[int(word)] if int(word) < len(gpus) else None
    if word.startswith("MIG-") and gpus:
        return Gpu(uuid=word)  # NVML lists the whole GPUs only
    found = [gpu for gpu in gpus if word and gpu.uuid.startswith(word)]
    return found[0] if len(found) == 1 else None
