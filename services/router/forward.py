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

# Control answers these at once, and waits for routers for ten seconds at most.
_QUICK_S: Final = 30.0
# The largest models take so long to load; the load goes on whoever waits for it.
_LOADING_S: Final = 3600.0
_LOADING: Final = ("RepositoryModelLoad", "RepositoryModelUnload")

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

    def __init__(
        self, target: str, *, quick_s: float = _QUICK_S, loading_s: float = _LOADING_S
    ) -> None:
        """Dial ``target`` when first needed.

        Args:
            target: Control's address.
            quick_s: How long control may take to answer.
            loading_s: How long to load or unload a model.
        """
        self._quick_s = quick_s
        self._loading_s = loading_s
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
        is_loading = name.rpartition("/")[2] in _LOADING
        timeout_s = self._loading_s if is_loading else self._quick_s

        def forward(message: bytes) -> bytes:
            try:
                answer: bytes = call(message, timeout=timeout_s)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    text = f"control did not answer within {timeout_s:g} s"
                    raise ModelNotReadyError(text) from error
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
