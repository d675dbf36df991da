"""The one table from errors to statuses, and from there to HTTP."""

from collections.abc import Mapping
from typing import Final

import grpc

from services.core.errors import (
    AlreadyExistsError,
    BackendError,
    DeadlineExceededError,
    ExhaustedError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    ModelNotReadyError,
    OverloadedError,
    RequestCancelledError,
    ServingError,
    StoppingError,
    UnsupportedError,
)

STATUS_CODES: Final[Mapping[type[ServingError], grpc.StatusCode]] = {
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    ModelNotFoundError: grpc.StatusCode.NOT_FOUND,
    ModelNotReadyError: grpc.StatusCode.UNAVAILABLE,
    OverloadedError: grpc.StatusCode.UNAVAILABLE,
    StoppingError: grpc.StatusCode.UNAVAILABLE,
    RequestCancelledError: grpc.StatusCode.CANCELLED,
    DeadlineExceededError: grpc.StatusCode.DEADLINE_EXCEEDED,
    UnsupportedError: grpc.StatusCode.UNIMPLEMENTED,
    BackendError: grpc.StatusCode.INTERNAL,
    ExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    InternalError: grpc.StatusCode.INTERNAL,
}

_HTTP_STATUSES: Final[Mapping[grpc.StatusCode, int]] = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.INTERNAL: 500,
}


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """Return the code and the client-visible message for ``error``.

    The closest ancestor in ``STATUS_CODES`` decides. Anything that is not a
    ServingError is our bug: the client learns only that it happened.
    """
    for cls in type(error).__mro__:
        if cls in STATUS_CODES:
            return STATUS_CODES[cls], str(error)
    return grpc.StatusCode.INTERNAL, "internal error"


def http_status(code: grpc.StatusCode) -> int:
    """Return the HTTP status of ``code``, by Triton's map: unnamed means 400."""
    return _HTTP_STATUSES.get(code, 400)
