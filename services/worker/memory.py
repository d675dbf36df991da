"""How much memory this worker holds: its own, its children's, its GPU's.

Python models are processes below this one. What two loads at the same time take is
told apart only by chance: the figures are for people and for placement, not for
accounts.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.core.nvml import NoNvmlError, open_nvml
from services.worker.device import Device, DeviceKind

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What is held now, or what a load added.

    Attributes:
        cpu_bytes: Resident, of this process and those below it.
        gpu_bytes: On the device; 0 on a CPU or if it cannot be told.
    """

    cpu_bytes: int = 0
    gpu_bytes: int = 0

    def since(self, before: "MemoryUse") -> "MemoryUse":
        """Return what was added; what shrank counts as nothing."""
        return MemoryUse(
            cpu_bytes=max(self.cpu_bytes - before.cpu_bytes, 0),
            gpu_bytes=max(self.gpu_bytes - before.gpu_bytes, 0),
        )


def measure(device: Device) -> MemoryUse:
    """Return what this process and its children hold now."""
    family = tuple(_family(os.getpid()))
    return MemoryUse(
        cpu_bytes=sum(map(_resident_bytes, family)),
        gpu_bytes=_gpu_bytes(device, frozenset(family)),
    )


def _family(process: int) -> Iterator[int]:
    """Yield a process and all that descend from it."""
    yield process
    for path in (_PROC / str(process) / "task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue  # the thread has ended
        for child in children:
            yield from _family(int(child))


def _resident_bytes(process: int) -> int:
    try:
        fields = (_PROC / str(process) / "statm").read_text().split()
    except OSError:
        return 0  # it has ended
    return int(fields[1]) * _PAGE_BYTES


def _gpu_bytes(device: Device, family: frozenset[int]) -> int:
    if device.kind is not DeviceKind.GPU or not device.uuid:
        return 0
    try:
        pynvml = open_nvml()
    except NoNvmlError:
        return 0
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return 0
    return sum(each.usedGpuMemory or 0 for each in running if each.pid in family)
