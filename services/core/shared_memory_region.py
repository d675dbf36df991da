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
    """A stretch of a shared memory object, or of memory on a GPU.

    Attributes:
        key: Of the object, as ``shm_open`` takes it; on a GPU, the
            cudaIpcMemHandle_t in base64.
        offset: Of the first byte, from the beginning of the object.
        byte_size: Of the stretch.
        device: The GPU's index; None for the host's memory.
    """

    key: str
    offset: int
    byte_size: int
    device: int | None = None

    def encode(self) -> str:
        """Return the value of the parameter."""
        device = "" if self.device is None else self.device
        return f"{self.offset}:{self.byte_size}:{device}:{self.key}"

    @classmethod
    def decode(cls, text: str) -> "SharedMemoryRegion":
        """Read the value of the parameter.

        Raises:
            ValueError: it was not written by ``encode``.
        """
        offset, byte_size, device, key = text.split(":", 3)
        return cls(
            key=key,
            offset=int(offset),
            byte_size=int(byte_size),
            device=int(device) if device else None,
        )
