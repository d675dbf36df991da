"""Memory that two processes see, and that is gone when neither lives.

It is a memfd: it has no name, so nothing can be left over in /dev/shm, however the
processes end, and its size does not count there.
"""

import mmap
import os
from collections.abc import Sequence
from typing import Final

# Enough for every datatype, and what vector instructions like.
ALIGNMENT: Final = 64
_MIN_BYTES: Final = 1 << 16


class Arena:
    """A piece of shared memory in which one side writes tensors for the other.

    It is as large as the largest batch so far; a larger one needs a new arena.

    Attributes:
        memory: The bytes; it stays mapped while an array refers to it.
        size: In bytes.
    """

    __slots__ = ("memory", "size")

    def __init__(self, descriptor: int, size: int) -> None:
        """Map ``size`` bytes of an open file."""
        self.memory = mmap.mmap(descriptor, size)
        self.size = size


def create(size: int) -> tuple[Arena, int]:
    """Return a new arena of at least ``size`` bytes, and its descriptor to pass on.

    Raises:
        OSError: there is no memory left.
    """
    size = max(1 << (size - 1).bit_length(), _MIN_BYTES) if size > 1 else _MIN_BYTES
    descriptor = os.memfd_create("nereid-tensors", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        return Arena(descriptor, size), descriptor
    except BaseException:
        os.close(descriptor)
        raise


def adopt(descriptor: int) -> Arena:
    """Map what the other side has created; the descriptor is closed."""
    try:
        return Arena(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where tensors of these sizes go, and how much they take together."""
    offsets, position = [], 0
    for size in sizes:
        offsets.append(position)
        position += (size + ALIGNMENT - 1) & -ALIGNMENT
    return offsets, position
