"""The one device that a worker process serves."""

import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from services.core.errors import ConfigError
from services.core.gpus import Gpu, visible_gpus


class DeviceKind(enum.Enum):
    """What computes."""

    CPU = "cpu"
    GPU = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A CPU or one GPU.

    Attributes:
        kind: Which of the two.
        index: The GPU's number among those that may be seen, as ``--device``
            names it; 0 for a CPU. Inside the process the GPU is always number
            0, for it is the only one visible.
        uuid: NVML's UUID of the GPU; empty for a CPU or if it is not known.
        memory_bytes: In all; 0 if it is not known.
        compute_capability: Of a GPU, as in "9.0"; empty if it is not known.
    """

    kind: DeviceKind
    index: int = 0
    uuid: str = ""
    memory_bytes: int = 0
    compute_capability: str = ""

    @property
    def label(self) -> str:
        """As ``--device`` takes it: "cpu" or "cuda:<index>"."""
        return "cpu" if self.kind is DeviceKind.CPU else f"cuda:{self.index}"


def parse_device(text: str) -> Device:
    """Read "cpu" or "cuda:<index>" ("cuda" means "cuda:0").

    Raises:
        ConfigError: it is neither.
    """
    if text == "cpu":
        return Device(kind=DeviceKind.CPU)
    name, colon, index = text.partition(":")
    if name != "cuda" or (colon and not index.isdecimal()):
        message = f"unknown device '{text}': expected cpu or cuda:<index>"
        raise ConfigError(message)
    return Device(kind=DeviceKind.GPU, index=int(index or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenDevice:
    """A device and the way to see no other.

    Attributes:
        device: With what this host tells about it.
        visible: The CUDA_VISIBLE_DEVICES under which only it is seen.
    """

    device: Device
    visible: str


def choose(
    device: Device, gpus: Sequence[Gpu], environment: Mapping[str, str]
) -> ChosenDevice:
    """Return what is known of ``device``, and how to be left alone with it.

    A CUDA_VISIBLE_DEVICES that is already there, by a container or a scheduler,
    counts: the device is the index-th of those it names. A GPU is named by its UUID,
    for CUDA may number GPUs in another order than NVML does.

    Args:
        device: As parsed.
        gpus: Of the host; () if nobody can tell.
        environment: Of this process.

    Raises:
        ConfigError: there is no such GPU.
    """
    if device.kind is DeviceKind.CPU:
        return ChosenDevice(device=replace(device, memory_bytes=_memory()), visible="")
    outer = environment.get("CUDA_VISIBLE_DEVICES")
    if not gpus:
        return ChosenDevice(device=device, visible=_unseen(device, outer))
    visible = visible_gpus(gpus, outer)
    if device.index >= len(visible):
        shown = "" if outer is None else f" and CUDA_VISIBLE_DEVICES is '{outer}'"
        message = f"no device {device.label}: this host has {len(gpus)} GPUs{shown}"
        raise ConfigError(message)
    gpu = visible[device.index]
    known = replace(
        device,
        uuid=gpu.uuid,
        memory_bytes=gpu.memory_bytes,
        compute_capability=gpu.compute_capability,
    )
    return ChosenDevice(device=known, visible=gpu.uuid)


def _unseen(device: Device, outer: str | None) -> str:
    """Return how to see one GPU of which nothing is known but its number."""
    if outer is None:
        return str(device.index)
    names = [name.strip() for name in outer.split(",") if name.strip()]
    if device.index >= len(names):
        message = (
            f"no device {device.label}: CUDA_VISIBLE_DEVICES names {len(names)}"
            f" ('{outer}')"
        )
        raise ConfigError(message)
    return names[device.index]


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
