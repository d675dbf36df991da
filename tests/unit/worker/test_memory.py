import subprocess
import sys

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
