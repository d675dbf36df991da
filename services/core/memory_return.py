"""Memory that one huge message needed, given back to the system.

The allocator keeps what was freed, up to half a gigabyte and between what is still
in use, because messages of the usual sizes then cost half (``process_tuning``). After
tensors of hundreds of MiB that is too much to keep for ever.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Final

_LOOK_EVERY_NS: Final = 2_000_000_000
_WORTH_BYTES: Final = 128 << 20
_HUGE_BYTES: Final = 64 << 20
_MOST_TRIES: Final = 4
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return how much memory this process has in use; 0 if that cannot be told."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - 5 times a second
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def trim() -> None:
    """Have the allocator give back whatever is free."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # a libc that has no such function
        return


def trim_after(message: bytes) -> None:
    """Give back what it took to receive a huge message, before more is needed.

    C-core collects it in pieces, which are free once it is one.
    """
    if len(message) >= _HUGE_BYTES:
        trim()


class MemoryReturn:
    """Looks now and then whether much more is in use than after the last trim."""

    __slots__ = ("_floor_bytes", "_look_ns", "_resident_bytes", "_tries", "_trim")

    def __init__(
        self,
        *,
        resident: Callable[[], int] = resident_bytes,
        trim_memory: Callable[[], None] = trim,
    ) -> None:
        """Take what is in use now as needed."""
        self._resident_bytes = resident
        self._trim = trim_memory
        self._floor_bytes = resident()
        self._look_ns = 0
        self._tries = 0

    def tick(self, now_ns: int) -> None:
        """Look, if it is time to: trimming takes milliseconds, looking 10 us.

        What a trim does not give back may still be in use: it is tried again, less
        and less often, and then taken as needed.

        Args:
            now_ns: Monotonic.
        """
        if now_ns < self._look_ns:
            return
        self._look_ns = now_ns + _LOOK_EVERY_NS
        resident = self._resident_bytes()
        if resident <= self._floor_bytes + _WORTH_BYTES:
            self._floor_bytes = min(self._floor_bytes, resident)
            self._tries = 0
            return
        self._trim()
        resident = self._resident_bytes()
        self._tries += 1
        if resident <= self._floor_bytes + _WORTH_BYTES or self._tries > _MOST_TRIES:
            self._floor_bytes = resident
            self._tries = 0
        self._look_ns = now_ns + (_LOOK_EVERY_NS << self._tries)
