"""Which devices get a worker."""

from collections.abc import Mapping, Sequence

from services.core.errors import ConfigError
from services.core.gpus import Gpu, visible_gpus
from services.core.nvml import NoNvmlError, list_gpus


def choose(
    asked_for: tuple[str, ...], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the devices asked for, or else all there are.

    Raises:
        ConfigError: a GPU is asked for that is not there.
    """
    reason = ""
    gpus: tuple[Gpu, ...] = ()
    try:
        gpus = list_gpus()
    except NoNvmlError as error:
        reason = str(error)
    visible = visible_gpus(gpus, environment.get("CUDA_VISIBLE_DEVICES"))
    return devices_of(asked_for, gpus, visible, reason)


def devices_of(
    asked_for: Sequence[str], gpus: Sequence[Gpu], visible: Sequence[Gpu], reason: str
) -> tuple[str, ...]:
    """Return the devices asked for, or else every visible GPU and the CPU. Pure.

    Args:
        asked_for: "cpu" and "cuda:N"; the first visible GPU is cuda:0.
        gpus: Of the host.
        visible: Those of them that may be used.
        reason: Why the GPUs are not known; empty if they are.

    Raises:
        ConfigError: a GPU is asked for that is not there.
    """
    present = (*(f"cuda:{number}" for number in range(len(visible))), "cpu")
    for device in asked_for:
        if device in present:
            continue
        there = f"there are {', '.join(present)}"
        if len(visible) < len(gpus):
            there += f" (CUDA_VISIBLE_DEVICES hides {len(gpus) - len(visible)} GPUs)"
        if not gpus:
            there = "there is no GPU" + (f" (NVML: {reason})" if reason else "")
        raise ConfigError(f"--device {device}: {there}")
    return tuple(asked_for) or present
