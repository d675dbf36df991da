"""Memory of the host for tensors on their way to a device and back.

Copies between pinned memory and a GPU need no copy in between and do not hold the
thread up.
"""

import ctypes
import weakref
from typing import Final

import numpy as np
import structlog

from services.core.errors import BackendError
from services.core.model_config import InstanceKind
from services.worker.backend import InstancePlace, ModelSource
from services.worker.cuda_driver import CudaDriver, open_driver
from services.worker.device import DeviceKind
from services.worker.gather import Allocate, Bytes, pageable

_SMALLEST: Final = 1  # an array without bytes has no address

_log = structlog.get_logger(__name__)


class PinnedMemory:
    """Pinned memory, as long as there is any."""

    def __init__(self, driver: CudaDriver) -> None:
        """Allocate nothing yet."""
        self._driver = driver
        self._is_pinned = True

    def __call__(self, size: int) -> Bytes:
        """Return ``size`` bytes, which go back when their array and its views do.

        Once there is no pinned memory left it is other memory, for good.
        """
        if not self._is_pinned:
            return pageable(size)
        try:
            self._driver.enter()
            address = self._driver.allocate_host(max(size, _SMALLEST))
        except BackendError as error:
            self._is_pinned = False
            _log.warning("no more pinned memory", reason=str(error), bytes=size)
            return pageable(size)
        block = (ctypes.c_ubyte * size).from_address(address)
        weakref.finalize(block, self._free, address).atexit = False
        return np.ndarray(size, np.uint8, memoryview(block))

    def _free(self, address: int) -> None:
        self._driver.enter()
        self._driver.free_host(address)


def uses_gpu(source: ModelSource, place: InstancePlace) -> bool:
    """Tell whether an instance computes on this worker's GPU."""
    groups = source.config.instance_groups
    kind = groups[place.group].kind if place.group < len(groups) else InstanceKind.AUTO
    return source.device.kind is DeviceKind.GPU and kind is not InstanceKind.CPU


def input_memory(source: ModelSource, place: InstancePlace) -> Allocate:
    """Return where an instance's inputs are gathered."""
    wanted = source.config.optimization.input_pinned_memory
    return _memory(source, place, wanted=wanted)


def output_memory(source: ModelSource, place: InstancePlace) -> Allocate:
    """Return where an instance's outputs are received."""
    wanted = source.config.optimization.output_pinned_memory
    return _memory(source, place, wanted=wanted)


def _memory(source: ModelSource, place: InstancePlace, *, wanted: bool) -> Allocate:
    if not wanted or not uses_gpu(source, place):
        return pageable
    try:
        return PinnedMemory(open_driver())
    except BackendError as error:
        _log.warning("no pinned memory", model=source.config.name, reason=str(error))
        return pageable
