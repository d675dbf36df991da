"""The one device that a worker process serves."""

import csv
import enum
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from services.core.errors import ConfigError

_MIB: Final = 1 << 20
_QUERY_TIMEOUT_S: Final = 10


class DeviceKind(enum.Enum):
    """What computes."""

    CPU = "cpu"
    GPU = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A CPU or one GPU.

    Attributes:
        kind: Which of the two.
        index: The GPU's index on its host, as ``--device`` names it; 0 for a
            CPU. Inside the process the GPU is always number 0, for it is the
            only one visible.
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


def visible_devices(device: Device, environment: Mapping[str, str]) -> str:
    """Return the CUDA_VISIBLE_DEVICES under which only ``device`` is seen.

    A value that is already there, by a container or a scheduler, counts: the
    device is the index-th of those it names.

    Raises:
        ConfigError: it names fewer.
    """
    if device.kind is DeviceKind.CPU:
        return ""
    outer = environment.get("CUDA_VISIBLE_DEVICES")
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


def describe(device: Device, visible: str) -> Device:
    """Return ``device`` with what this host tells about it.

    Args:
        device: As parsed.
        visible: What ``visible_devices`` returned for it.
    """
    if device.kind is DeviceKind.CPU:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Device(kind=device.kind, memory_bytes=pages)
    uuid, memory_bytes = _ask_nvidia_smi(visible)
    return Device(
        kind=device.kind, index=device.index, uuid=uuid, memory_bytes=memory_bytes
    )


def parse_nvidia_smi(text: str) -> tuple[str, int]:
    """Read one line ``uuid, MiB``; ("", 0) if it is something else."""
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        match row:
            case [uuid, mebibytes] if mebibytes.isdecimal():
                return uuid, int(mebibytes) * _MIB
    return "", 0


def _ask_nvidia_smi(visible: str) -> tuple[str, int]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "", 0
    query = [
        program,
        f"--id={visible}",
        "--query-gpu=uuid,memory.total",
        "--format=csv,noheader,nounits",
    ]
    try:
        answer = subprocess.run(
            query,
            capture_output=True,
            text=True,
            check=False,
            timeout=_QUERY_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", 0
    return parse_nvidia_smi(answer.stdout)
