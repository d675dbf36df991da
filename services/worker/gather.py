"""Reused memory in which the tensors of a batch are put together."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from services.worker.signature import Signature, TensorSpec, element_count

_MAX_VIEWS: Final = 256
_MIN_BYTES: Final = 4096
_KEPT_BYTES: Final = 64 << 20


Bytes: TypeAlias = NDArray[np.uint8]
Allocate: TypeAlias = Callable[[int], Bytes]


def pageable(size: int) -> Bytes:
    """Return memory like any other."""
    return np.empty(size, np.uint8)


class GatherBuffer:
    """The bytes of one input, for the batch at hand.

    It grows to the largest batch seen and is kept: an instance needs it again with
    the next batch, and fresh pages cost more than the copy. Only what is huge goes
    when a smaller batch comes.
    """

    __slots__ = (
        "_allocate_bytes",
        "_dtype",
        "_kept_bytes",
        "_memory",
        "_views",
        "bytes_view",
    )

    def __init__(
        self, spec: TensorSpec, signature: Signature, allocate: Allocate = pageable
    ) -> None:
        """Make room for a full batch where its size is known beforehand."""
        self._allocate_bytes = allocate
        self._dtype = spec.datatype.numpy_dtype
        rows = max(signature.max_batch_size, 1)
        fixed = -1 not in spec.dims and not self._dtype.hasobject
        size = rows * element_count(spec.dims) * self._dtype.itemsize if fixed else 0
        self._views: dict[tuple[int, ...], NDArray[Any]] = {}
        self._kept_bytes = max(size, _KEPT_BYTES)
        self._allocate(max(size, _MIN_BYTES))

    def reserve(self, size: int) -> memoryview:
        """Return at least ``size`` writable bytes; what was there is void."""
        room = len(self.bytes_view)
        if size > self._kept_bytes:
            if size > room:
                self._allocate(size)
        elif size > room:
            self._allocate(max(size, min(2 * room, self._kept_bytes)))
        elif room > self._kept_bytes:
            self._allocate(max(size, _MIN_BYTES))
        return self.bytes_view

    def matrix(self, count: int, size: int) -> NDArray[np.uint8]:
        """Return ``count`` rows of ``size`` writable bytes; what was there is void."""
        self.reserve(count * size)
        return self._memory[: count * size].reshape(count, size)

    def array(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the bytes as an array, C-contiguous from the first byte on.

        Args:
            shape: Must not need more bytes than were reserved.
        """
        view = self._views.get(shape)
        if view is None:
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            view = np.ndarray(shape, self._dtype, self._memory)
            view.flags.writeable = False
            self._views[shape] = view
        return view

    def _allocate(self, size: int) -> None:
        self._memory = self._allocate_bytes(size)
        self.bytes_view = self._memory.data
        self._views.clear()


def gather_elements(
    elements: list[bytes], shape: tuple[int, ...]
) -> NDArray[np.object_]:
    """Return the elements of a BYTES tensor as an array of ``shape``."""
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)
