"""What a worker holds of its host and of its device."""

import os
import subprocess
import sys
import types

import pytest

from services.worker.device import Device, DeviceKind
from services.worker.memory import MemoryUse, measure

CPU = Device(kind=DeviceKind.CPU)
SIZE = 64 << 20


def test_what_this_process_takes_is_seen() -> None:
    before = measure(CPU)
    held = bytearray(b"x" * SIZE)
    added = measure(CPU).since(before)
    assert added.cpu_bytes >= len(held) * 0.9
    assert added.gpu_bytes == 0


def test_what_a_child_takes_is_seen() -> None:
    program = f"held = b'x' * {SIZE}; print(flush=True); input()"
    before = measure(CPU)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        added = measure(CPU).since(before)
        child.communicate(b"\n")
    assert added.cpu_bytes >= SIZE * 0.9


def test_what_shrank_counts_as_nothing() -> None:
    small, large = MemoryUse(cpu_bytes=1, gpu_bytes=2), MemoryUse(cpu_bytes=5)
    assert small.since(large) == MemoryUse(cpu_bytes=0, gpu_bytes=2)


class PuppetNvml(types.ModuleType):
    """NVML of one GPU, with what a test says that processes hold of it."""

    class NVMLError(Exception):
        """NVML's own."""

    def __init__(self, held: dict[int, int | None]) -> None:
        super().__init__("pynvml")
        self.held = held
        self.is_broken = False

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's
        if self.is_broken:
            raise self.NVMLError("driver not loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return f"handle of {uuid}"

    def nvmlDeviceGetComputeRunningProcesses(  # noqa: N802
        self, handle: str
    ) -> list[types.SimpleNamespace]:
        assert handle == "handle of GPU-1"
        return [
            types.SimpleNamespace(pid=process, usedGpuMemory=held)
            for process, held in self.held.items()
        ]


def test_of_a_gpu_only_what_this_worker_holds_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Device(kind=DeviceKind.GPU, uuid="GPU-1")
    nvml = PuppetNvml({os.getpid(): 100, os.getppid(): 7})
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    before = measure(gpu)
    nvml.held[os.getpid()] = 350
    assert measure(gpu).since(before).gpu_bytes == 250
    # NVML may not know: for example in a container without the host's processes.
    nvml.held[os.getpid()] = None
    assert measure(gpu).gpu_bytes == 0
    nvml.is_broken = True
    assert measure(gpu).gpu_bytes == 0
    assert measure(CPU).gpu_bytes == 0
