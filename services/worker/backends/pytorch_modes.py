"""What PyTorch knows once for the whole process, and models want each their way."""

import threading
from typing import Final

import structlog
import torch

from services.worker.backends.pytorch_options import TorchSettings

_log = structlog.get_logger(__name__)


def _set_cudnn(enabled: bool) -> None:  # noqa: FBT001 - as its neighbours
    torch.backends.cudnn.enabled = enabled


def _profiling_executor() -> bool:
    """Return whether it is on; it can only be asked by setting it."""
    is_on = bool(torch._C._jit_set_profiling_executor(True))  # noqa: FBT003
    torch._C._jit_set_profiling_executor(is_on)
    return is_on


def _profiling_mode() -> bool:
    is_on = bool(torch._C._jit_set_profiling_mode(True))  # noqa: FBT003
    torch._C._jit_set_profiling_mode(is_on)
    return is_on


_EXECUTOR: Final = _profiling_executor()
_PROFILING: Final = _profiling_mode()
_FUSER: Final = bool(torch._C._jit_texpr_fuser_enabled())


class ExecutionModes:
    """The switches of one model.

    They are set before each of its executions, and seen by whatever else runs in the
    process at that time: so it is with Triton's.
    """

    def __init__(self, settings: TorchSettings) -> None:
        """Take what ``settings`` say, and PyTorch's choice for the rest."""
        switches = torch._C
        self._switches = (
            (switches._set_graph_executor_optimize, settings.optimized_execution),
            (
                switches._jit_set_profiling_executor,
                _or(settings.jit_executor, _EXECUTOR),
            ),
            (switches._jit_set_profiling_mode, _or(settings.jit_profiling, _PROFILING)),
            (switches._jit_set_texpr_fuser_enabled, _or(settings.tensor_fuser, _FUSER)),
            (_set_cudnn, settings.cudnn),
        )

    def apply(self) -> None:
        """Set the switches."""
        for switch, value in self._switches:
            switch(value)


def _or(wanted: bool | None, default: bool) -> bool:  # noqa: FBT001 - two switches
    return default if wanted is None else wanted


class ThreadCounts:
    """How many threads PyTorch has: the first model that says so decides.

    Source:
        Triton's PyTorch backend, which ignores what later models say.
    """

    def __init__(self) -> None:
        """Begin with what PyTorch has chosen."""
        self._lock = threading.Lock()
        self._decided: dict[str, int] = {}

    def decide(self, settings: TorchSettings, model: str) -> None:
        """Set what ``settings`` of ``model`` say, if nobody has."""
        wishes = (
            ("INTRA_OP_THREAD_COUNT", settings.intra_op_threads, torch.set_num_threads),
            (
                "INTER_OP_THREAD_COUNT",
                settings.inter_op_threads,
                torch.set_num_interop_threads,
            ),
        )
        for name, wanted, set_count in wishes:
            if not wanted:
                continue
            with self._lock:
                if name not in self._decided:
                    self._decided[name] = wanted
                    set_count(wanted)
            if self._decided[name] != wanted:
                _log.warning(
                    "another model has decided on PyTorch's threads",
                    model=model,
                    parameter=name,
                    wanted=wanted,
                    decided=self._decided[name],
                )


THREAD_COUNTS: Final = ThreadCounts()
"""Of this process."""
