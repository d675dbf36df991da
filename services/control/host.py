"""Looks at this host for its metrics, now and then."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import structlog

from services.control.gpu_metrics import Gpus
from services.control.host_metrics import (
    CpuTicks,
    families,
    parse_cpu,
    parse_memory,
    utilization,
)
from services.control.metrics_settings import MetricsSettings
from services.control.prometheus import Family

_log = structlog.get_logger(__name__)

_PROC: Final = Path("/proc")


class Host:
    """CPUs, memory and GPUs of the host that control runs on."""

    def __init__(self, settings: MetricsSettings, proc: Path = _PROC) -> None:
        """Take a first look at the CPUs.

        Args:
            settings: What is to be shown.
            proc: Where the kernel tells of itself.
        """
        self._proc = proc
        self._gpus = Gpus() if settings.has_gpu else None
        self._interval_ns = int(settings.interval_s * 1e9)
        self._next_look_ns = 0
        self._load = 0.0
        self._ticks = self._look() if settings.has_cpu else None

    def families(self, now_ns: int) -> Iterator[Family]:
        """Yield the families of the host.

        The load is that between two looks, which are an interval apart or more.

        Args:
            now_ns: Monotonic.
        """
        if self._ticks is not None:
            yield from self._cpu_families(now_ns)
        if self._gpus is not None:
            yield from self._gpus.families()

    def _cpu_families(self, now_ns: int) -> Iterator[Family]:
        before = self._ticks
        try:
            memory = parse_memory((self._proc / "meminfo").read_text())
        except (OSError, ValueError) as error:
            _log.info("no metrics of this host", reason=str(error))
            return
        if before is not None and now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + self._interval_ns
            self._ticks = self._look() or before
            self._load = utilization(before, self._ticks)
        yield from families(self._load, memory)

    def _look(self) -> CpuTicks | None:
        try:
            return parse_cpu((self._proc / "stat").read_text())
        except (OSError, ValueError) as error:
            _log.info("no metrics of this host", reason=str(error))
            return None
