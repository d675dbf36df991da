"""Which devices get a worker."""

import shutil
import subprocess
from collections.abc import Mapping
from typing import Final

LIST_TIMEOUT_S: Final = 20.0


def devices_of(listing: str, visible: str | None) -> tuple[str, ...]:
    """Return every visible GPU by its index, and the CPU. Pure.

    Args:
        listing: What ``nvidia-smi -L`` printed; empty where there is no GPU.
        visible: ``CUDA_VISIBLE_DEVICES``: indices and UUIDs (also their beginnings)
            separated by commas, ended by the first that is invalid; None if unset.

    Source:
        "CUDA Environment Variables" in the CUDA C++ Programming Guide.
    """
    lines = [line for line in listing.splitlines() if line.startswith("GPU ")]
    indices = range(len(lines))
    if visible is not None:
        indices_chosen = []
        for word in visible.split(","):
            index = _index_of(word.strip(), lines)
            if index is None or index in indices_chosen:
                break
            indices_chosen.append(index)
        return (*(f"cuda:{index}" for index in indices_chosen), "cpu")
    return (*(f"cuda:{index}" for index in indices), "cpu")


def _index_of(word: str, lines: list[str]) -> int | None:
    """Return the index of the GPU that one word of the variable names."""
    if word.isdigit():
        return int(word) if int(word) < len(lines) else None
    named = [i for i, line in enumerate(lines) if word and f"UUID: {word}" in line]
    return named[0] if len(named) == 1 else None


def list_gpus() -> str:
    """Return what ``nvidia-smi -L`` prints; empty if there is no such program."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "-L"],
            capture_output=True,
            check=True,
            text=True,
            timeout=LIST_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def choose(
    asked_for: tuple[str, ...], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the devices asked for, or else all there are."""
    return asked_for or devices_of(list_gpus(), environment.get("CUDA_VISIBLE_DEVICES"))
