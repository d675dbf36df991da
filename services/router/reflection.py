"""Server reflection on the completion queue: grpcurl needs no schema.

The answers are grpcio-reflection's; only the transport is ours.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection, reflection_pb2

from services.core.completion_queue import (
    NativeCall,
    NativeMetadata,
    StreamCall,
)

SERVICE_NAME: Final[str] = reflection.SERVICE_NAME
# The same messages under both names: newer clients ask for v1 first.
REFLECTION_METHODS: Final = (
    f"/{SERVICE_NAME}/ServerReflectionInfo",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
)
_INVALID_ARGUMENT: Final[int] = grpc.StatusCode.INVALID_ARGUMENT.value[0]


class _ReflectionCall(StreamCall):
    __slots__ = ("_servicer",)

    def __init__(
        self,
        call: NativeCall,
        method: str,
        metadata: NativeMetadata,
        servicer: reflection.ReflectionServicer,
    ) -> None:
        super().__init__(call, method, metadata)
        self._servicer = servicer
        self.read()

    def received(self, message: bytes) -> None:
        try:
            request = reflection_pb2.ServerReflectionRequest.FromString(message)
        except DecodeError:
            self.finish(_INVALID_ARGUMENT, "not a ServerReflectionRequest")
            return
        answer: Any = self._servicer.ServerReflectionInfo
        for response in answer(iter((request,)), None):
            self.send(response.SerializeToString())

    def sent_all(self) -> None:
        """Read on, not before: who sends without reading is not read from either."""
        if self.open:
            self.read()

    def half_closed(self) -> None:
        self.finish()


def reflection_calls(
    service_names: Sequence[str],
) -> Callable[[NativeCall, str, NativeMetadata], StreamCall]:
    """Return the factory of reflection calls that list ``service_names``."""
    servicer = reflection.ReflectionServicer(service_names)

    def accept(call: NativeCall, method: str, metadata: NativeMetadata) -> StreamCall:
        return _ReflectionCall(call, method, metadata, servicer)

    return accept
