"""Waits for what becomes true by itself, at a deadline's risk."""

import contextlib
import threading
import time
from collections.abc import Callable

from tritonclient.utils import InferenceServerException

PATIENCE_S = 30.0
PAUSE_S = 0.05


def eventually(is_true: Callable[[], bool]) -> None:
    """Return once ``is_true``; while it cannot be asked it is not true.

    An unload answers before the worker has let go: what is seen right after it may
    still be UNLOADING, as with Triton.
    """
    pause = threading.Event()
    until_s = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError, LookupError, InferenceServerException):
            if is_true():
                return
        assert time.monotonic() < until_s, "it did not become true in time"
        pause.wait(PAUSE_S)
