"""CPU time of whole servers, with all that they start, and of the load generator."""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.bench import process_cpu
from tests.bench.errors import BenchError

INTERVAL_S: Final = 0.2
CLIENT_NAME: Final = "perf_analyzer"
_FIRST_SHARE: Final = 4
_LAST_SHARE: Final = 10
_FEWEST: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSample:
    """CPU time at one moment, all since the processes started, in nanoseconds."""

    at_ns: int
    server_ns: int
    client_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuShares:
    """How many cores were busy with each while the load was on."""

    server: float
    client: float


def shares(samples: Sequence[CpuSample]) -> CpuShares:
    """Return the shares in the middle of the load: it begins and ends slowly. Pure.

    Raises:
        BenchError: the load was too short.
    """
    busy = [
        index
        for index in range(len(samples) - 1)
        if samples[index + 1].client_ns > samples[index].client_ns
    ]
    if len(busy) < _FEWEST:
        raise BenchError("the load was too short to be measured: raise --seconds")
    first = samples[busy[len(busy) // _FIRST_SHARE]]
    last = samples[busy[-1 - len(busy) // _LAST_SHARE]]
    window_ns = last.at_ns - first.at_ns
    return CpuShares(
        server=(last.server_ns - first.server_ns) / window_ns,
        client=(last.client_ns - first.client_ns) / window_ns,
    )


class CpuSampler:
    """Samples from ``with`` to its end, on a thread."""

    def __init__(self, root: int) -> None:
        """Prepare to look at process ``root`` and all that it started."""
        self._root = root
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[CpuSample] = []

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self.samples.append(self._sample())

    def _sample(self) -> CpuSample:
        stats = {stat.pid: stat for stat in process_cpu.all_stats()}
        server = process_cpu.descendants(self._root, stats.values()) | {self._root}
        ours = process_cpu.descendants(os.getpid(), stats.values())
        return CpuSample(
            at_ns=time.monotonic_ns(),
            server_ns=sum(stats[pid].cpu_ns for pid in server if pid in stats),
            client_ns=sum(stats[pid].cpu_ns for pid in ours if _is_client(pid)),
        )


def _is_client(pid: int) -> bool:
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return name.strip() == CLIENT_NAME
