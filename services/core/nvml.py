"""The GPUs of this host, by NVML: its Python package and a driver."""

import importlib
from typing import Any, Final

from services.core.gpus import Gpu

PACKAGE: Final = "pynvml"


class NoNvmlError(Exception):
    """There is no NVML here; the message says why."""


def open_nvml(module: str = PACKAGE) -> Any:  # noqa: ANN401 - it has no types
    """Return NVML's functions by their C names, ready to be called.

    Raises:
        NoNvmlError: the package or the driver is missing.
    """
    try:
        nvml: Any = importlib.import_module(module)
    except ImportError as error:
        raise NoNvmlError(str(error)) from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoNvmlError(str(error)) from error
    return nvml


def list_gpus(module: str = PACKAGE) -> tuple[Gpu, ...]:
    """Return the GPUs as ``nvidia-smi`` numbers them.

    Raises:
        NoNvmlError: nobody can tell.
    """
    nvml = open_nvml(module)
    try:
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(index)
            for index in range(nvml.nvmlDeviceGetCount())
        ]
        return tuple(_gpu(nvml, handle) for handle in handles)
    except nvml.NVMLError as error:
        raise NoNvmlError(str(error)) from error


def text_of(value: str | bytes) -> str:
    """Return a text as NVML gives it, older versions as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _gpu(nvml: Any, handle: object) -> Gpu:  # noqa: ANN401
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        uuid=text_of(nvml.nvmlDeviceGetUUID(handle)),
        name=text_of(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        compute_capability=f"{major}.{minor}",
    )
