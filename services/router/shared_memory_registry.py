"""The shared memory regions that clients have registered with this router. Pure.

Only names and places are kept. The worker maps a region while it executes a request
that uses it, so a region may be unregistered at any time: requests that were
admitted before still know where it is.

Source: Triton's system shared memory extension; the messages are its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from services.core.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    UnsupportedError,
)
from services.core.shared_memory_region import SharedMemoryRegion

DISABLED_TEXT: Final = (
    "Client shared memory is disabled. Start the server with "
    "'--allow-client-shm=true' to enable."
)
# Triton's own regions are named so; no client may have one of them read.
_RESERVED_PREFIX: Final = "triton_python_backend_shm_region_"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredRegion:
    """A region as its client registered it.

    Attributes:
        name: By which requests name it.
        place: Where it is.
    """

    name: str
    place: SharedMemoryRegion


class SharedMemoryRegistry:
    """Regions by name; safe to use from any thread, for one dict holds them all."""

    __slots__ = ("_is_allowed", "_regions", "_size_of")

    def __init__(
        self,
        *,
        is_allowed: bool = False,
        size_of: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        """Begin with no region.

        Args:
            is_allowed: Whether clients may register any.
            size_of: Returns the bytes of a shared memory object by its key; None
                if it cannot be opened for reading and writing.
        """
        self._is_allowed = is_allowed
        self._size_of = size_of
        self._regions: dict[str, RegisteredRegion] = {}

    def check_allowed(self) -> None:
        """Refuse what the operator has not switched on.

        Raises:
            UnsupportedError: clients may not share memory.
        """
        if not self._is_allowed:
            raise UnsupportedError(DISABLED_TEXT)

    def register(self, name: str, place: SharedMemoryRegion) -> None:
        """Remember that ``name`` is ``place``.

        Raises:
            UnsupportedError: clients may not share memory.
            InvalidRequestError: the object is smaller, or its key none that a
                client may use.
            InternalError: there is no such object.
            AlreadyExistsError: the name is taken.
        """
        self.check_allowed()
        _check_key(name, place.key)
        taken = AlreadyExistsError(f"shared memory region '{name}' already in manager")
        if name in self._regions:
            raise taken
        size = self._size_of(place.key)
        if size is None:
            raise InternalError(f"Unable to open shared memory region: '{place.key}'")
        if place.offset + place.byte_size > size:
            message = f"failed to register shared memory region '{name}': invalid args"
            raise InvalidRequestError(message)
        region = RegisteredRegion(name=name, place=place)
        if self._regions.setdefault(name, region) is not region:
            raise taken

    def unregister(self, name: str) -> None:
        """Forget ``name``, if it is known; forget all if it is "".

        Raises:
            UnsupportedError: clients may not share memory.
        """
        self.check_allowed()
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str) -> tuple[RegisteredRegion, ...]:
        """Return the region ``name``; all, by name, if it is "".

        Raises:
            ModelNotFoundError: it is not registered.
        """
        if not name:
            return tuple(sorted(self._regions.values(), key=lambda one: one.name))
        region = self._regions.get(name)
        if region is None:
            message = f"Unable to find system shared memory region: '{name}'"
            raise ModelNotFoundError(message)
        return (region,)

    def resolve(self, name: str, offset: int, byte_size: int) -> SharedMemoryRegion:
        """Return where a part of a region is.

        Args:
            name: Of the region.
            offset: Of the part, from the region's beginning; any integer.
            byte_size: Of the part; any integer.

        Raises:
            ModelNotFoundError: the region is not registered.
            InvalidRequestError: the part lies outside of it.
        """
        region = self._regions.get(name)
        if region is None:
            message = f"Unable to find shared memory region: '{name}'"
            raise ModelNotFoundError(message)
        place = region.place
        if not 0 <= offset < place.byte_size:
            message = f"Invalid offset for shared memory region: '{name}'"
            raise InvalidRequestError(message)
        if not 0 <= byte_size <= place.byte_size - offset:
            message = f"Invalid offset + byte size for shared memory region: '{name}'"
            raise InvalidRequestError(message)
        return SharedMemoryRegion(
            key=place.key, offset=place.offset + offset, byte_size=byte_size
        )


def _check_key(name: str, key: str) -> None:
    bare = key.lstrip("/")
    if not bare:
        message = (
            f"cannot register shared memory region '{name}' - invalid shm key '{key}'"
        )
        raise InvalidRequestError(message)
    if bare.startswith(_RESERVED_PREFIX):
        message = (
            f"cannot register shared memory region '{name}' with key '{key}' as the "
            f"key contains the reserved prefix '{_RESERVED_PREFIX}'"
        )
        raise InvalidRequestError(message)
