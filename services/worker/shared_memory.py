"""Memory that clients share with this host: mapped while it is used.

Nothing stays mapped between requests, so memory that a client gives up is given
back, and a region that is unregistered meanwhile does no harm.
"""

import mmap
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from services.core.errors import InternalError
from services.core.shared_memory_region import SharedMemoryRegion
from services.worker import cuda_memory

# Where shm_open has its objects.
_FOLDER: Final = "/dev/shm"  # noqa: S108 - what a client shares, not a file of ours
_POPULATE: Final = getattr(mmap, "MAP_POPULATE", 0)


def read_region(region: SharedMemoryRegion) -> memoryview:
    """Return the bytes of a region; they are mapped as long as the view lives.

    Raises:
        InternalError: it is not here, or not as large as the client said.
    """
    if region.byte_size == 0:
        return memoryview(b"")
    if region.device is not None:
        return cuda_memory.read(region)
    mapped, skip = _map(region, os.O_RDONLY, mmap.PROT_READ)
    return memoryview(mapped)[skip : skip + region.byte_size]


def write_region(region: SharedMemoryRegion, data: bytes | memoryview) -> None:
    """Write to the beginning of a region.

    Args:
        region: Where; at least as large as ``data``.
        data: What.

    Raises:
        InternalError: as ``read_region``.
    """
    if not len(data):
        return
    if region.device is not None:
        cuda_memory.write(region, data)
        return
    mapped, skip = _map(region, os.O_RDWR, mmap.PROT_READ | mmap.PROT_WRITE)
    mapped[skip : skip + len(data)] = data
    mapped.close()


def gather(
    regions: Sequence[SharedMemoryRegion | None],
    message: bytes,
    spans: Sequence[tuple[int, int]],
) -> tuple[bytes | memoryview, tuple[tuple[int, int], ...]]:
    """Return one source of all inputs of a request, and where in it each lies.

    Without a copy if all are in one shared memory object, which is how most clients
    share; else they are joined.

    Args:
        regions: One for each input; None if it is in the message.
        message: Holds the request.
        spans: Where in it the inputs lie that it holds.

    Raises:
        InternalError: as ``read_region``.
    """
    shared = [region for region in regions if region is not None]
    first = min(region.offset for region in shared)
    if len(shared) == len(regions) and len({region.key for region in shared}) == 1:
        last = max(region.offset + region.byte_size for region in shared)
        whole = replace(shared[0], offset=first, byte_size=last - first)
        return read_region(whole), tuple(
            (region.offset - first, region.offset - first + region.byte_size)
            for region in shared
        )
    pieces: list[bytes | memoryview] = []
    found = []
    position = 0
    for region, (start, end) in zip(regions, spans, strict=True):
        piece = (
            memoryview(message)[start:end] if region is None else read_region(region)
        )
        pieces.append(piece)
        found.append((position, position + len(piece)))
        position += len(piece)
    return b"".join(pieces), tuple(found)


def _map(region: SharedMemoryRegion, access: int, prot: int) -> tuple[mmap.mmap, int]:
    """Map the pages of a region; return them and where in them it begins."""
    end = region.offset + region.byte_size
    start = region.offset - region.offset % mmap.ALLOCATIONGRANULARITY
    name = region.key.removeprefix("/")
    try:
        if not name or "/" in name or name in (".", ".."):
            raise FileNotFoundError(name)
        handle = os.open(f"{_FOLDER}/{name}", access | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # A page behind the object's end would kill the process when touched.
            if os.fstat(handle).st_size < end:
                raise ValueError("it has become smaller")
            mapped = mmap.mmap(
                handle,
                end - start,
                flags=mmap.MAP_SHARED | _POPULATE,
                prot=prot,
                offset=start,
            )
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:
        message = (
            f"shared memory '{region.key}' cannot be used by this worker; it has to "
            f"run on the client's host and share its {_FOLDER}: {error}"
        )
        raise InternalError(message) from error
    return mapped, region.offset - start
