"""The shared memory methods of the gRPC API: decode, look up, encode."""

from collections.abc import Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from protos import inference_pb2 as pb
from services.core.errors import InternalError
from services.core.shared_memory_region import SharedMemoryRegion
from services.router.cold_call import ColdMethod
from services.router.servicer import SERVICE
from services.router.shared_memory_registry import SharedMemoryRegistry

_Request = TypeVar("_Request", bound=Message)


class SharedMemoryServicer:
    """Registers regions in system memory and on GPUs."""

    def __init__(self, registry: SharedMemoryRegistry) -> None:
        """Answer for ``registry``."""
        self._registry = registry

    def methods(self) -> Mapping[str, ColdMethod]:
        """Return the methods by their full names."""
        return {
            SERVICE + "SystemSharedMemoryStatus": self.system_status,
            SERVICE + "SystemSharedMemoryRegister": self.system_register,
            SERVICE + "SystemSharedMemoryUnregister": self.system_unregister,
            SERVICE + "CudaSharedMemoryStatus": self.cuda_status,
            SERVICE + "CudaSharedMemoryRegister": self.cuda_register,
            SERVICE + "CudaSharedMemoryUnregister": self.cuda_unregister,
        }

    def system_status(self, message: bytes) -> bytes:
        """Answer with one region, or all."""
        request = _read(pb.SystemSharedMemoryStatusRequest, message)
        response = pb.SystemSharedMemoryStatusResponse()
        for region in self._registry.status(request.name):
            status = response.regions[region.name]
            status.name = region.name
            status.key = region.place.key
            status.offset = region.place.offset
            status.byte_size = region.place.byte_size
        return response.SerializeToString()

    def system_register(self, message: bytes) -> bytes:
        """Register one region."""
        request = _read(pb.SystemSharedMemoryRegisterRequest, message)
        place = SharedMemoryRegion(
            key=request.key, offset=request.offset, byte_size=request.byte_size
        )
        self._registry.register(request.name, place)
        return pb.SystemSharedMemoryRegisterResponse().SerializeToString()

    def system_unregister(self, message: bytes) -> bytes:
        """Unregister one region, or all."""
        request = _read(pb.SystemSharedMemoryUnregisterRequest, message)
        self._registry.unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse().SerializeToString()

    def cuda_status(self, message: bytes) -> bytes:
        """Answer with one region, or all."""
        request = _read(pb.CudaSharedMemoryStatusRequest, message)
        response = pb.CudaSharedMemoryStatusResponse()
        for region in self._registry.status(request.name, is_cuda=True):
            status = response.regions[region.name]
            status.name = region.name
            status.device_id = region.place.device or 0
            status.byte_size = region.place.byte_size
        return response.SerializeToString()

    def cuda_register(self, message: bytes) -> bytes:
        """Register one region."""
        request = _read(pb.CudaSharedMemoryRegisterRequest, message)
        self._registry.register_cuda(
            request.name,
            handle=request.raw_handle,
            device=request.device_id,
            byte_size=request.byte_size,
        )
        return pb.CudaSharedMemoryRegisterResponse().SerializeToString()

    def cuda_unregister(self, message: bytes) -> bytes:
        """Unregister one region, or all."""
        request = _read(pb.CudaSharedMemoryUnregisterRequest, message)
        self._registry.unregister(request.name, is_cuda=True)
        return pb.CudaSharedMemoryUnregisterResponse().SerializeToString()


def _read(kind: type[_Request], message: bytes) -> _Request:
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise InternalError("Unable to parse request") from error
