"""What this worker asks of CUDA itself: memory, streams and copies.

Everything goes through the driver's library, which is wherever a GPU is; nothing has
to be installed for it. All of it happens on the one GPU that the process sees, in its
primary context, which runtimes use too.
"""

import ctypes
import functools
from typing import Any, Final, TypeAlias

from services.core.errors import BackendError

_LIBRARY: Final = "libcuda.so.1"
_PORTABLE: Final = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for every context
_NON_BLOCKING: Final = 1  # CU_STREAM_NON_BLOCKING: does not wait for stream 0

Address: TypeAlias = int


class NoCudaError(BackendError):
    """There is no CUDA driver or no GPU here."""


class CudaDriver:
    """The GPU that this process sees. May be used by any thread."""

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - ctypes has no types
        """Open the GPU.

        Args:
            library: The driver's functions by their C names.

        Raises:
            NoCudaError: there is none.
        """
        self._library = library
        self._context = ctypes.c_void_p()
        device = ctypes.c_int()
        try:
            self._call("cuInit", ctypes.c_uint(0))
            self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        except BackendError as error:
            raise NoCudaError(str(error)) from error

    def enter(self) -> None:
        """Let the calling thread use the GPU; before anything else it does there."""
        self._call("cuCtxSetCurrent", self._context)

    def allocate(self, size: int) -> Address:
        """Return memory of the GPU.

        Raises:
            BackendError: there is not enough.
        """
        address = ctypes.c_void_p()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value or 0

    def free(self, address: Address) -> None:
        """Give memory of the GPU back."""
        self._call("cuMemFree_v2", ctypes.c_void_p(address))

    def allocate_host(self, size: int) -> Address:
        """Return pinned memory of the host.

        Raises:
            BackendError: there is not enough.
        """
        address = ctypes.c_void_p()
        self._call(
            "cuMemHostAlloc",
            ctypes.byref(address),
            ctypes.c_size_t(size),
            ctypes.c_uint(_PORTABLE),
        )
        return address.value or 0

    def free_host(self, address: Address) -> None:
        """Give pinned memory back."""
        self._call("cuMemFreeHost", ctypes.c_void_p(address))

    def open_stream(self) -> Address:
        """Return a stream: what is put into it happens in order."""
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))
        return stream.value or 0

    def close_stream(self, stream: Address) -> None:
        """Give a stream back."""
        self._call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def wait(self, stream: Address) -> None:
        """Return when all that was put into a stream has happened.

        Raises:
            BackendError: something of it failed.
        """
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def to_device(
        self, target: Address, source: Address, size: int, stream: Address
    ) -> None:
        """Put a copy from the host to the GPU into a stream."""
        self._copy("cuMemcpyHtoDAsync_v2", target, source, size, stream)

    def to_host(
        self, target: Address, source: Address, size: int, stream: Address
    ) -> None:
        """Put a copy from the GPU to the host into a stream."""
        self._copy("cuMemcpyDtoHAsync_v2", target, source, size, stream)

    def _copy(
        self, function: str, target: Address, source: Address, size: int, stream: int
    ) -> None:
        self._call(
            function,
            ctypes.c_void_p(target),
            ctypes.c_void_p(source),
            ctypes.c_size_t(size),
            ctypes.c_void_p(stream),
        )

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            message = f"CUDA error {code} ({self._text(code)}) in {function}"
            raise BackendError(message)

    def _text(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
        return (text.value or b"unknown").decode()


@functools.cache
def open_driver(library: str = _LIBRARY) -> CudaDriver:
    """Return the driver of this host, opened once.

    Raises:
        NoCudaError: there is none, or no GPU.
    """
    try:
        loaded = ctypes.CDLL(library)
    except OSError as error:
        message = f"there is no CUDA driver here: {error}"
        raise NoCudaError(message) from error
    return CudaDriver(loaded)
