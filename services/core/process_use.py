"""What this process has taken of its host.

Source: proc(5), "/proc/[pid]/stat" and "/proc/[pid]/statm".
"""

import functools
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_START_TIME: Final = 19
_RESIDENT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """CPU time and memory of one process.

    Attributes:
        cpu_ns: Of all its threads, since it started.
        resident_bytes: Now.
        started_ms: Since 1970.
    """

    cpu_ns: int = 0
    resident_bytes: int = 0
    started_ms: int = 0


def process_use() -> ProcessUse:
    """Measure this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[_RESIDENT])
    return ProcessUse(
        cpu_ns=time.process_time_ns(),
        resident_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        started_ms=_started_ms(),
    )


@functools.cache
def _started_ms() -> int:
    """Return when this process started, in milliseconds since 1970."""
    # The name, in parentheses, may have spaces.
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    ticks = int(after_name[_START_TIME])
    since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    age_s = since_boot_s - ticks / os.sysconf("SC_CLK_TCK")
    return int((time.time() - age_s) * 1000)
