"""Errors on their way through the gateway, which turns a gRPC status into HTTP's.

Envoy maps codes as google.rpc.Code documents them; where Triton answers another
HTTP status, the code is changed here to one that Envoy maps to it.
"""

from collections.abc import Mapping
from typing import Final

import grpc

from services.core.completion_queue import Metadata, NativeMetadata, metadata_values
from services.core.status import status_of
from services.router.rest_compression import KNOWN_ENCODINGS, UnknownEncodingError

# The gateway carries less than 64 KiB of headers.
LONGEST_DETAILS_BYTES: Final = 50_000
_INVALID: Final[int] = grpc.StatusCode.INVALID_ARGUMENT.value[0]
# The codes whose HTTP status is the same by Envoy's map and by Triton's, and those
# that Triton has no answer for: the client's deadline and its leaving.
_KEPT: Final = frozenset(
    code.value[0]
    for code in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.PERMISSION_DENIED,
    )
)


def rest_status(error: int | BaseException, details: str = "") -> tuple[int, str]:
    """Return the gRPC code and message that make Envoy answer as Triton would.

    Args:
        error: A gRPC code with its ``details``, or an exception.
        details: What the client is told.
    """
    if isinstance(error, BaseException):
        status, details = status_of(error)
        code: int = status.value[0]
    else:
        code = error
    return code if code in _KEPT else _INVALID, details


def trailing_headers(error: BaseException) -> Metadata | None:
    """Return the headers of the answer that tells of ``error``, None for none.

    They go with the status: that makes them headers to Envoy, as nothing was sent
    before.
    """
    if isinstance(error, UnknownEncodingError):
        return (("accept-encoding", KNOWN_ENCODINGS),)
    return None


def text_headers(metadata: NativeMetadata) -> Mapping[str, str]:
    """Return the headers of a request, names in lower case."""
    return {
        key: value
        for key, value in metadata_values(metadata).items()
        if isinstance(value, str)
    }
