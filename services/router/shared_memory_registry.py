"""The shared memory regions that clients have registered with this router.

Only names and places are kept: the worker maps a region while it executes a request
that uses it. A region that is unregistered while requests use it stays until the last
of them is answered; its client may see by that when the memory is its own again.

Source: Triton's system and CUDA shared memory extensions; the messages are its own.
"""

import base64
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

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
CUDA_REFUSED: Final = "failed to register shared memory region: invalid args"
_HANDLE_BYTES: Final = 64
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

    @property
    def is_cuda(self) -> bool:
        """Whether it is on a GPU."""
        return self.place.device is not None


class RegionUser(Protocol):
    """A request that uses regions."""

    @property
    def open(self) -> bool:
        """Whether its client still waits."""
        ...


class SharedMemoryRegistry:
    """Regions by name; safe to use from any thread."""

    __slots__ = (
        "_has_gpu",
        "_holds",
        "_is_allowed",
        "_leaving",
        "_lock",
        "_regions",
        "_size_of",
    )

    def __init__(
        self,
        *,
        is_allowed: bool = False,
        size_of: Callable[[str], int | None] = lambda _: None,
        has_gpu: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Begin with no region.

        Args:
            is_allowed: Whether clients may register any.
            size_of: Returns the bytes of a shared memory object by its key; None
                if it cannot be opened for reading and writing.
            has_gpu: Whether a worker serves the GPU of that index, and can open
                what clients share on it.
        """
        self._has_gpu = has_gpu
        self._is_allowed = is_allowed
        self._size_of = size_of
        # Reentrant: a request may end, and let go, wherever objects are made.
        self._lock = threading.RLock()
        self._regions: dict[str, RegisteredRegion] = {}
        self._leaving: set[str] = set()
        self._holds: dict[weakref.ref[RegionUser], tuple[str, ...]] = {}

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
        self._check_free(name)
        size = self._size_of(place.key)
        if size is None:
            raise InternalError(f"Unable to open shared memory region: '{place.key}'")
        if place.offset + place.byte_size > size:
            message = f"failed to register shared memory region '{name}': invalid args"
            raise InvalidRequestError(message)
        self._add(RegisteredRegion(name=name, place=place))

    def register_cuda(
        self, name: str, *, handle: bytes, device: int, byte_size: int
    ) -> None:
        """Remember that ``name`` is memory on a GPU.

        Whether the handle can be opened shows when the first request uses it: only
        workers have the GPU.

        Args:
            name: Of the region.
            handle: A cudaIpcMemHandle_t.
            device: The GPU's index.
            byte_size: Of the memory.

        Raises:
            UnsupportedError: clients may not share memory.
            InvalidRequestError: no worker serves that GPU, or it is no handle.
            AlreadyExistsError: the name is taken.
        """
        self.check_allowed()
        self._check_free(name)
        if len(handle) != _HANDLE_BYTES or not self._has_gpu(device):
            raise InvalidRequestError(CUDA_REFUSED)
        place = SharedMemoryRegion(
            key=base64.b64encode(handle).decode(),
            offset=0,
            byte_size=byte_size,
            device=device,
        )
        self._add(RegisteredRegion(name=name, place=place))

    def _check_free(self, name: str) -> None:
        with self._lock:
            self._forget_unused()
            if name in self._regions:
                raise _taken(name)

    def _add(self, region: RegisteredRegion) -> None:
        with self._lock:
            if self._regions.setdefault(region.name, region) is not region:
                raise _taken(region.name)

    def unregister(self, name: str, *, is_cuda: bool = False) -> None:
        """Forget ``name``, if it is known; forget all of the kind if it is "".

        One that requests use is forgotten when they have been answered.

        Raises:
            UnsupportedError: clients may not share memory.
        """
        self.check_allowed()
        with self._lock:
            of_kind = {r.name for r in self._regions.values() if r.is_cuda is is_cuda}
            self._leaving |= of_kind & {name} if name else of_kind
            self._forget_unused()

    def hold(self, names: tuple[str, ...], user: RegionUser) -> None:
        """Keep regions until ``user``, a request that uses them, is answered."""
        with self._lock:
            self._holds[weakref.ref(user, self._let_go)] = names

    def _let_go(self, user: "weakref.ref[RegionUser]") -> None:
        with self._lock:
            del self._holds[user]
            self._forget_unused()

    def _forget_unused(self) -> None:
        """Forget who is leaving and no longer used; with the lock.

        A request is answered some milliseconds before nobody knows it any more, so
        whoever looks for regions calls this first.
        """
        if not self._leaving:
            return
        users = ((user(), names) for user, names in self._holds.items())
        used = {name for user, names in users if user and user.open for name in names}
        for name in self._leaving - used:
            del self._regions[name]
        self._leaving &= used

    def status(
        self, name: str, *, is_cuda: bool = False
    ) -> tuple[RegisteredRegion, ...]:
        """Return the region ``name``; all of the kind, by name, if it is "".

        Raises:
            ModelNotFoundError: it is not registered, or of the other kind.
        """
        with self._lock:
            self._forget_unused()
            regions = tuple(self._regions.values())
        if not name:
            of_kind = (one for one in regions if one.is_cuda is is_cuda)
            return tuple(sorted(of_kind, key=lambda one: one.name))
        region = self._regions.get(name)
        asked, other = ("cuda", "system") if is_cuda else ("system", "cuda")
        if region is None:
            message = f"Unable to find {asked} shared memory region: '{name}'"
            raise ModelNotFoundError(message)
        if region.is_cuda is not is_cuda:
            words = {"cuda": "CUDA", "system": "system"}
            message = (
                f"The region named '{name}' is registered as {words[other]} shared "
                f"memory, not {words[asked]} shared memory"
            )
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
        if self._leaving:
            with self._lock:
                self._forget_unused()
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
        return replace(place, offset=place.offset + offset, byte_size=byte_size)


def _taken(name: str) -> AlreadyExistsError:
    return AlreadyExistsError(f"shared memory region '{name}' already in manager")


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
