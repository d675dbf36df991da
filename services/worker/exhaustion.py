"""Telling "it does not fit on the device" from every other error of a runtime.

Runtimes say so in words only: ONNX Runtime's arenas, CUDA, torch, C++ itself, and the
process of a Python model.
"""

from typing import Final

_SIGNS: Final = (
    "out of memory",
    "out_of_memory",
    "failed to allocate memory",
    "can't allocate memory",
    "std::bad_alloc",
    "alloc_failed",
    "memoryerror",
)


def is_exhaustion(error: Exception) -> bool:
    """Tell whether a smaller batch might have succeeded where ``error`` came."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(sign in text for sign in _SIGNS)
