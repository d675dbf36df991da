"""A CUDA driver without a GPU: its memory is the host's, its streams are lists.

What is put into a stream happens when somebody waits for it, not before.
"""

# ruff: noqa: ANN401, N802 - the names are CUDA's, the arguments are ctypes'

import ctypes
import threading
from collections.abc import Callable
from typing import Any

OUT_OF_MEMORY = 2
NO_DEVICE = 100
INVALID_CONTEXT = 201


class PuppetCuda:
    """The driver's functions by their C names.

    Attributes:
        room: Bytes that may be allocated, of GPU and pinned memory together.
        memory: What is allocated now, by address.
        streams: What is still to happen, by stream.
    """

    def __init__(self, *, room: int = 1 << 30, has_device: bool = True) -> None:
        self.room = room
        self.memory: dict[int, ctypes.Array[Any]] = {}
        self.streams: dict[int, list[Callable[[], object]]] = {}
        self._has_device = has_device
        self._entered = threading.local()

    def cuInit(self, _flags: Any) -> int:
        return 0 if self._has_device else NO_DEVICE

    def cuDeviceGet(self, device: Any, _ordinal: Any) -> int:
        device._obj.value = 0
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, _device: Any) -> int:
        context._obj.value = 77
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self._entered.context = context.value
        return 0

    def cuGetErrorString(self, code: Any, text: Any) -> int:
        words = {OUT_OF_MEMORY: b"out of memory", NO_DEVICE: b"no CUDA-capable device"}
        text._obj.value = words.get(code.value, b"invalid device context")
        return 0

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:
        return self._allocate(address, size)

    def cuMemHostAlloc(self, address: Any, size: Any, _flags: Any) -> int:
        return self._allocate(address, size)

    def cuMemFree_v2(self, address: Any) -> int:
        return self._free(address)

    def cuMemFreeHost(self, address: Any) -> int:
        return self._free(address)

    def cuStreamCreate(self, stream: Any, _flags: Any) -> int:
        if not self._has_entered():
            return INVALID_CONTEXT
        stream._obj.value = 1000 + len(self.streams)
        self.streams[stream._obj.value] = []
        return 0

    def cuStreamDestroy_v2(self, stream: Any) -> int:
        del self.streams[stream.value]
        return 0

    def cuStreamSynchronize(self, stream: Any) -> int:
        if not self._has_entered():
            return INVALID_CONTEXT
        todo = self.streams[stream.value]
        while todo:
            todo.pop(0)()
        return 0

    def cuMemcpyHtoDAsync_v2(
        self, target: Any, source: Any, size: Any, stream: Any
    ) -> int:
        return self._copy(target, source, size, stream)

    def cuMemcpyDtoHAsync_v2(
        self, target: Any, source: Any, size: Any, stream: Any
    ) -> int:
        return self._copy(target, source, size, stream)

    def _has_entered(self) -> bool:
        return getattr(self._entered, "context", None) == 77

    def _allocate(self, address: Any, size: Any) -> int:
        if not self._has_entered():
            return INVALID_CONTEXT
        if sum(map(len, self.memory.values())) + size.value > self.room:
            return OUT_OF_MEMORY
        block = ctypes.create_string_buffer(size.value)
        address._obj.value = ctypes.addressof(block)
        self.memory[address._obj.value] = block
        return 0

    def _free(self, address: Any) -> int:
        if not self._has_entered():
            return INVALID_CONTEXT
        del self.memory[address.value]
        return 0

    def _copy(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        if not self._has_entered():
            return INVALID_CONTEXT
        places = target.value, source.value, size.value
        self.streams[stream.value].append(lambda: ctypes.memmove(*places))
        return 0
