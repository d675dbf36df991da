"""What machine and what source a figure belongs to."""

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine and the source on it.

    Attributes:
        cpu_model: As the kernel names it.
        cores: That this process may use.
        kernel: Its release.
        python: Version of the interpreter.
        grpcio: Version of the package.
        onnxruntime: Version of the package.
        commit: Of the source; ends in ``-dirty`` if files were changed since.
        load_average: Of the last minute, before the benchmark began.
    """

    cpu_model: str
    cores: int
    kernel: str
    python: str
    grpcio: str
    onnxruntime: str
    commit: str
    load_average: float


def describe(root: Path) -> Machine:
    """Describe this machine and the source at ``root``."""
    return Machine(
        cpu_model=cpu_model(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        python=platform.python_version(),
        grpcio=version("grpcio"),
        onnxruntime=version("onnxruntime"),
        commit=_commit(root),
        load_average=os.getloadavg()[0],
    )


def cpu_model(cpuinfo: str) -> str:
    """Return the first processor's name in ``/proc/cpuinfo``.

    Some architectures have none: then the machine's is returned.
    """
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _commit(root: Path) -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"
