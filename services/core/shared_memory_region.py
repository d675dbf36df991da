"""Where in a host's shared memory a tensor lies, as router and worker tell it. Pure.

A client names a region that it has registered; the router looks the name up and
passes on where that is, so that the worker maps it itself and no tensor goes
through the router. It travels as one parameter of the tensor, which no client may
send itself: it would let it read any memory of the host.
"""

from dataclasses import dataclass
from typing import Final

# The parameter of an input or a requested output that only a router writes.
REGION_PARAMETER: Final = "nereid_shared_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemoryRegion:
    """A stretch of a shared memory object.

    Attributes:
        key: Of the object, as ``shm_open`` takes it.
        offset: Of the first byte, from the beginning of the object.
        byte_size: Of the stretch.
    """

    key: str
    offset: int
    byte_size: int

    def encode(self) -> str:
        """Return the value of the parameter."""
        return f"{self.offset}:{self.byte_size}:{self.key}"

    @classmethod
    def decode(cls, text: str) -> "SharedMemoryRegion":
        """Read the value of the parameter.

        Raises:
            ValueError: it was not written by ``encode``.
        """
        offset, byte_size, key = text.split(":", 2)
        return cls(key=key, offset=int(offset), byte_size=int(byte_size))
