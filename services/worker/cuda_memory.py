"""Memory on this worker's GPU that clients share: opened while it is used.

What a client shares is copied from and to the GPU through the host; the handle is
opened for each use and closed behind it, so a client may give its memory up at any
time. Source: the CUDA runtime's functions for interprocess communication.
"""

import base64
import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any, Final, Protocol

from services.core.errors import InternalError
from services.core.shared_memory_region import SharedMemoryRegion

HANDLE_BYTES: Final = 64
_LIBRARIES: Final = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
# Of cudart's headers.
_LAZY_ENABLE_PEER_ACCESS: Final = 1
_HOST_TO_DEVICE: Final = 1
_DEVICE_TO_HOST: Final = 2


class CudaError(Exception):
    """A function of the CUDA runtime failed; the message is its own."""


class GpuMemory(Protocol):
    """What has to be done with a GPU's memory."""

    def open(self, handle: bytes) -> int:
        """Map what another process shares; return its address.

        Raises:
            CudaError: it is no handle of this GPU, or its owner has ended.
        """
        ...

    def close(self, address: int) -> None:
        """Unmap it."""
        ...

    def copy_to_host(self, address: int, size: int) -> bytearray:
        """Return ``size`` bytes from ``address`` on.

        Raises:
            CudaError: they are not all there.
        """
        ...

    def copy_to_device(self, address: int, data: bytes | memoryview) -> None:
        """Write ``data`` from ``address`` on.

        Raises:
            CudaError: there is no room for it.
        """
        ...


class _Handle(ctypes.Structure):
    """A cudaIpcMemHandle_t, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class CudaRuntime:
    """The CUDA runtime, on device 0: a worker sees no other."""

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - functions by C names
        """Call the functions of ``library``."""
        self._library = library

    def open(self, handle: bytes) -> int:
        """See GpuMemory."""
        address = ctypes.c_void_p()
        self._check(self._library.cudaSetDevice(0))
        self._check(
            self._library.cudaIpcOpenMemHandle(
                ctypes.byref(address),
                _Handle.from_buffer_copy(handle),
                ctypes.c_uint(_LAZY_ENABLE_PEER_ACCESS),
            )
        )
        return address.value or 0

    def close(self, address: int) -> None:
        """See GpuMemory."""
        self._check(self._library.cudaIpcCloseMemHandle(ctypes.c_void_p(address)))

    def copy_to_host(self, address: int, size: int) -> bytearray:
        """See GpuMemory."""
        data = bytearray(size)
        self._copy(_address_of(data), address, size, _DEVICE_TO_HOST)
        return data

    def copy_to_device(self, address: int, data: bytes | memoryview) -> None:
        """See GpuMemory."""
        # ctypes takes the address of writable memory only.
        source = bytearray(data)
        self._copy(address, _address_of(source), len(source), _HOST_TO_DEVICE)

    def _copy(self, target: int, source: int, size: int, kind: int) -> None:
        self._check(
            self._library.cudaMemcpy(
                ctypes.c_void_p(target),
                ctypes.c_void_p(source),
                ctypes.c_size_t(size),
                ctypes.c_int(kind),
            )
        )

    def _check(self, status: int) -> None:
        if status:
            describe = self._library.cudaGetErrorString
            describe.restype = ctypes.c_char_p
            raise CudaError(describe(status).decode())


@functools.cache
def runtime() -> GpuMemory:
    """Return the CUDA runtime of this process.

    Raises:
        CudaError: there is none.
    """
    for name in _LIBRARIES:
        with contextlib.suppress(OSError):
            return CudaRuntime(ctypes.CDLL(name))
    raise CudaError(f"none of {', '.join(_LIBRARIES)} is here")


def read(region: SharedMemoryRegion, memory: GpuMemory | None = None) -> memoryview:
    """Return a copy of a region's bytes.

    Args:
        region: On a GPU.
        memory: By default that of this process's GPU.

    Raises:
        InternalError: this worker cannot open it, or it is smaller.
    """
    with _opened(region, memory) as (gpu, address):
        return memoryview(gpu.copy_to_host(address, region.byte_size))


def write(
    region: SharedMemoryRegion,
    data: bytes | memoryview,
    memory: GpuMemory | None = None,
) -> None:
    """Write to the beginning of a region.

    Args:
        region: On a GPU; at least as large as ``data``.
        data: What.
        memory: By default that of this process's GPU.

    Raises:
        InternalError: as ``read``.
    """
    with _opened(region, memory) as (gpu, address):
        gpu.copy_to_device(address, data)


@contextlib.contextmanager
def _opened(
    region: SharedMemoryRegion, memory: GpuMemory | None
) -> Iterator[tuple[GpuMemory, int]]:
    """Yield the GPU and the address of a region's first byte on it."""
    try:
        gpu = memory or runtime()
        base = gpu.open(base64.b64decode(region.key))
        try:
            yield gpu, base + region.offset
        finally:
            gpu.close(base)
    except CudaError as error:
        message = (
            f"CUDA shared memory of device {region.device} cannot be used by this "
            f"worker: {error}"
        )
        raise InternalError(message) from error


def _address_of(data: bytearray) -> int:
    return ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))
