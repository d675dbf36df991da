"""Management methods, forwarded to control as the bytes they came in."""

from collections.abc import Mapping
from typing import Final

import grpc

from services.core.completion_queue import UNLIMITED_MESSAGES
from services.core.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    ModelNotReadyError,
    ServingError,
    UnsupportedError,
)
from services.router.cold_call import ColdMethod
from services.router.readiness import Ask
from services.router.readiness_question import asker
from services.router.servicer import SERVICE

FORWARDED_METHODS: Final = (
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "ModelStatistics",
    "TraceSetting",
    "LogSettings",
)

TRAFFIC_METHOD: Final = "/nereid.traffic.TrafficService/TrafficSetting"

_ERRORS: Final[Mapping[grpc.StatusCode, type[ServingError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: ModelNotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.UNAVAILABLE: ModelNotReadyError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedError,
    grpc.StatusCode.INTERNAL: InternalError,
}


class ControlForwarder:
    """Sends requests on to control and brings its answers back untouched."""

    def __init__(self, target: str) -> None:
        """Dial ``target`` when first needed."""
        self._channel = grpc.insecure_channel(target, options=UNLIMITED_MESSAGES)

    def methods(self) -> Mapping[str, ColdMethod]:
        """Return the forwarded methods by their full names."""
        names = (*(SERVICE + name for name in FORWARDED_METHODS), TRAFFIC_METHOD)
        return {name: self.method(name) for name in names}

    def method(self, name: str) -> ColdMethod:
        """Return one forwarded method, by its full name.

        It raises the ServingError that has the status control answered with.
        """
        call = self._channel.unary_unary(name, None, None)

        def forward(message: bytes) -> bytes:
            try:
                answer: bytes = call(message)
            except grpc.RpcError as error:
                kind = _ERRORS.get(error.code(), InternalError)
                raise kind(error.details() or error.code().name) from error
            return answer

        return forward

    def readiness(self) -> Ask:
        """Return the way to ask which generations are not ready."""
        return asker(self._channel)

    def close(self) -> None:
        """Hang up."""
        self._channel.close()
