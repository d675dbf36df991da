"""A host with GPUs that only a test believes in.

On PYTHONPATH it stands in the place of NVML's package. The variable below says how
many GPUs there are; without it there is no driver.
"""

import os
from types import SimpleNamespace

COUNT_VARIABLE = "NEREID_PUPPET_GPUS"


class NVMLError(Exception):
    pass


def nvmlInit() -> None:  # noqa: N802 - NVML's names
    if COUNT_VARIABLE not in os.environ:
        raise NVMLError("driver not loaded")


def nvmlDeviceGetCount() -> int:  # noqa: N802
    return int(os.environ[COUNT_VARIABLE])


def nvmlDeviceGetHandleByIndex(index: int) -> int:  # noqa: N802
    return index


def nvmlDeviceGetHandleByUUID(uuid: str) -> int:  # noqa: N802
    return int(uuid.removeprefix("GPU-"))


def nvmlDeviceGetUUID(gpu: int) -> bytes:  # noqa: N802
    return f"GPU-{gpu}".encode()


def nvmlDeviceGetName(gpu: int) -> str:  # noqa: N802
    return f"Puppet {gpu}"


def nvmlDeviceGetMemoryInfo(gpu: int) -> SimpleNamespace:  # noqa: N802
    return SimpleNamespace(total=(gpu + 1) << 30, used=gpu << 20)


def nvmlDeviceGetCudaComputeCapability(gpu: int) -> tuple[int, int]:  # noqa: N802
    return (9, gpu)


def nvmlDeviceGetComputeRunningProcesses(gpu: int) -> list[SimpleNamespace]:  # noqa: N802
    del gpu
    return []


def nvmlDeviceGetUtilizationRates(gpu: int) -> SimpleNamespace:  # noqa: N802
    del gpu
    return SimpleNamespace(gpu=0)


def nvmlDeviceGetPowerUsage(gpu: int) -> int:  # noqa: N802
    del gpu
    raise NVMLError("not supported")


def nvmlDeviceGetEnforcedPowerLimit(gpu: int) -> int:  # noqa: N802
    del gpu
    raise NVMLError("not supported")


def nvmlDeviceGetTotalEnergyConsumption(gpu: int) -> int:  # noqa: N802
    del gpu
    raise NVMLError("not supported")
