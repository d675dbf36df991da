"""What is in this host's shared memory."""

import os
from typing import Final

# Where shm_open has its objects.
_FOLDER: Final = "/dev/shm"  # noqa: S108 - what a client shares, not a file of ours


def object_size(key: str) -> int | None:
    """Return the bytes of the object ``key``; None if it is not ours to use.

    Args:
        key: As ``shm_open`` takes it, with or without its slash.
    """
    name = key.removeprefix("/")
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        return None
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        handle = os.open(f"{_FOLDER}/{name}", flags)
    except OSError:
        return None
    try:
        return os.fstat(handle).st_size
    finally:
        os.close(handle)
