"""The GPUs of this host, by NVML if its Python package and a driver are here.

Source: names and units are Triton's; NVML tells milliwatts and millijoules.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import structlog

from services.control.prometheus import Family, Labels, counter, gauge
from services.core.nvml import PACKAGE, NoNvmlError, open_nvml, text_of

_log = structlog.get_logger(__name__)

_METRICS: Final[tuple[tuple[str, str, Callable[[Any, Any], float]], ...]] = (
    (
        "nv_gpu_utilization",
        "GPU utilization rate [0.0 - 1.0)",
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    ),
    (
        "nv_gpu_memory_total_bytes",
        "GPU total memory, in bytes",
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total,
    ),
    (
        "nv_gpu_memory_used_bytes",
        "GPU used memory, in bytes",
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    ),
    (
        "nv_gpu_power_usage",
        "GPU power usage in watts",
        lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    ),
    (
        "nv_gpu_power_limit",
        "GPU power management limit in watts",
        lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    ),
)


def _energy_mj(nvml: Any, gpu: Any) -> float:  # noqa: ANN401 - it has no types
    """Return what a GPU has consumed since its driver was loaded."""
    return float(nvml.nvmlDeviceGetTotalEnergyConsumption(gpu))


class Gpus:
    """All GPUs of the host; none where there is no NVML."""

    def __init__(self, nvml_module: str = PACKAGE) -> None:
        """Open NVML if that is possible.

        Args:
            nvml_module: Which offers NVML's functions by their C names.
        """
        self._nvml: Any = None
        self._gpus: dict[str, Any] = {}
        # At our start; where it is not told, there is nothing.
        self._first_energy_mj: dict[str, float] = {}
        try:
            nvml = open_nvml(nvml_module)
        except NoNvmlError as error:
            _log.info("no metrics of GPUs", reason=str(error))
            return
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                gpu = nvml.nvmlDeviceGetHandleByIndex(index)
                self._gpus[text_of(nvml.nvmlDeviceGetUUID(gpu))] = gpu
        except nvml.NVMLError as error:
            _log.info("no metrics of GPUs", reason=str(error))
            return
        self._nvml = nvml
        for uuid, gpu in self._gpus.items():
            energy_mj = self._read(_energy_mj, gpu)
            if energy_mj is not None:
                self._first_energy_mj[uuid] = energy_mj

    def families(self) -> Iterator[Family]:
        """Yield the families of all GPUs; what one does not tell is left out."""
        for name, text, read in _METRICS:
            samples: list[tuple[Labels, float]] = []
            for uuid, gpu in self._gpus.items():
                value = self._read(read, gpu)
                if value is not None:
                    samples.append(({"gpu_uuid": uuid}, value))
            yield gauge(name, text, *samples)
        yield counter(
            "nv_energy_consumption",
            "GPU energy consumption in joules since the Triton Server started",
            *self._consumed(),
        )

    def _consumed(self) -> Iterator[tuple[Labels, float]]:
        for uuid, first_mj in self._first_energy_mj.items():
            energy_mj = self._read(_energy_mj, self._gpus[uuid])
            if energy_mj is not None:
                yield {"gpu_uuid": uuid}, (energy_mj - first_mj) / 1000

    def _read(self, read: Callable[[Any, Any], float], gpu: object) -> float | None:
        try:
            return read(self._nvml, gpu)
        except (self._nvml.NVMLError, AttributeError):
            # Not told by this GPU, or not known to this release of the package.
            return None
