"""Clients' memory on a GPU, where the GPU, or its runtime library, is a puppet."""

import base64
import ctypes
from typing import Any

import pytest

from services.core.errors import InternalError
from services.core.shared_memory_region import SharedMemoryRegion
from services.worker import cuda_memory, shared_memory
from services.worker.cuda_memory import CudaError, CudaRuntime, runtime

HANDLE = bytes(range(64))
BASE = 0x7000


def region(offset: int = 0, byte_size: int = 4) -> SharedMemoryRegion:
    key = base64.b64encode(HANDLE).decode()
    return SharedMemoryRegion(key=key, offset=offset, byte_size=byte_size, device=0)


class PuppetGpu:
    """A GPU whose memory is here, and which knows one handle."""

    def __init__(self, content: bytes) -> None:
        self.content = bytearray(content)
        self.opened = 0

    def open(self, handle: bytes) -> int:
        if handle != HANDLE:
            raise CudaError("invalid argument")
        self.opened += 1
        return BASE

    def close(self, address: int) -> None:
        assert address == BASE
        self.opened -= 1

    def copy_to_host(self, address: int, size: int) -> bytearray:
        found = self.content[address - BASE :][:size]
        if len(found) < size:
            raise CudaError("invalid value")
        return found

    def copy_to_device(self, address: int, data: bytes | memoryview) -> None:
        start = address - BASE
        if start + len(data) > len(self.content):
            raise CudaError("invalid value")
        self.content[start : start + len(data)] = data


def test_a_tensor_is_read_and_written_where_it_lies_and_the_handle_closed() -> None:
    gpu = PuppetGpu(b"0123456789")
    assert bytes(cuda_memory.read(region(2), gpu)) == b"2345"
    cuda_memory.write(region(6), memoryview(b"ab"), gpu)
    assert gpu.content == b"012345ab89"
    assert gpu.opened == 0


def test_a_region_that_is_smaller_than_its_client_said_is_the_requests_error() -> None:
    gpu = PuppetGpu(b"0123")
    message = "CUDA shared memory of device 0 cannot be used by this worker: invalid"
    with pytest.raises(InternalError, match=message):
        cuda_memory.write(region(2), b"abcd", gpu)
    with pytest.raises(InternalError, match=message):
        cuda_memory.read(region(2), gpu)
    assert gpu.opened == 0
    assert gpu.content == b"0123"


def test_without_a_cuda_runtime_a_region_on_a_gpu_is_the_requests_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    runtime.cache_clear()
    with pytest.raises(InternalError, match=r"none of libcudart\.so"):
        shared_memory.read_region(region())
    with pytest.raises(InternalError, match=r"none of libcudart\.so"):
        shared_memory.write_region(region(), b"ab")
    runtime.cache_clear()


def test_inputs_of_one_gpu_region_are_fetched_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = PuppetGpu(b"0123456789")
    monkeypatch.setattr(cuda_memory, "runtime", lambda: gpu)
    source, spans = shared_memory.gather([region(4), region(0)], b"", ())
    assert [bytes(source[start:stop]) for start, stop in spans] == [b"4567", b"0123"]


class PuppetLibrary:
    """libcudart with a piece of this process's memory for a GPU's."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(b"0123456789", 10)
        self.status = 0
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a C function
        def call(*arguments: Any) -> int:  # noqa: ANN401
            self.calls.append(name)
            getattr(self, f"_{name}", lambda *_: None)(*arguments)
            return self.status

        if name.startswith("_"):
            raise AttributeError(name)
        return call

    def _cudaIpcOpenMemHandle(  # noqa: N802
        self,
        address: Any,  # noqa: ANN401
        handle: ctypes.Structure,
        flags: ctypes.c_uint,
    ) -> None:
        assert (bytes(handle), flags.value) == (HANDLE, 1)
        address._obj.value = ctypes.addressof(self.memory)

    def _cudaMemcpy(  # noqa: N802
        self,
        target: ctypes.c_void_p,
        source: ctypes.c_void_p,
        size: ctypes.c_size_t,
        kind: ctypes.c_int,
    ) -> None:
        assert kind.value in {1, 2}
        ctypes.memmove(target, source, size.value)

    def cudaGetErrorString(self, status: int) -> bytes:  # noqa: N802
        return f"error {status}".encode()


def test_the_runtimes_functions_are_called_as_its_header_has_them() -> None:
    library = PuppetLibrary()
    gpu = CudaRuntime(library)
    address = gpu.open(HANDLE)
    assert gpu.copy_to_host(address + 2, 3) == b"234"
    gpu.copy_to_device(address + 8, memoryview(b"xy"))
    assert library.memory.raw == b"01234567xy"
    gpu.close(address)
    assert library.calls == [
        "cudaSetDevice",
        "cudaIpcOpenMemHandle",
        "cudaMemcpy",
        "cudaMemcpy",
        "cudaIpcCloseMemHandle",
    ]


def test_what_the_runtime_refuses_is_told_in_its_words() -> None:
    class Function:
        """cudaGetErrorString, whose result has to be declared."""

        restype: object = None

        def __call__(self, status: int) -> bytes:
            return f"error {status}".encode()

    library = PuppetLibrary()
    library.status = 201
    library.cudaGetErrorString = Function()  # type: ignore[method-assign]
    with pytest.raises(CudaError, match=r"^error 201$"):
        CudaRuntime(library).open(HANDLE)
