"""When a client that was turned away should come again.

gRPC clients find a google.rpc.RetryInfo among the status's details, as AIP-194 and
google.rpc's error model want it; HTTP clients a Retry-After. Only for UNAVAILABLE:
every other error comes again with the same request.
"""

from typing import Final

import grpc

from services.core.completion_queue import Metadata
from services.core.wire_format import encode_varint, length_prefix

_DELAY_S: Final = 1
# The text goes twice; clients read no more than 8 KiB of headers.
_LONGEST_DETAILS: Final = 1024
_UNAVAILABLE: Final[int] = grpc.StatusCode.UNAVAILABLE.value[0]
_RETRY_AFTER: Final = (("retry-after", str(_DELAY_S)),)
_TYPE_URL: Final = b"type.googleapis.com/google.rpc.RetryInfo"


def _field(number: int, content: bytes) -> bytes:
    return length_prefix(number, len(content)) + content


# google.protobuf.Duration, in a google.rpc.RetryInfo, in a google.protobuf.Any.
_DURATION: Final = b"\x08" + encode_varint(_DELAY_S)
_DETAIL: Final = _field(1, _TYPE_URL) + _field(2, _field(1, _DURATION))


def grpc_hint(code: int, details: str) -> Metadata | None:
    """Return what a gRPC status with ``code`` carries along; None for nothing."""
    if code != _UNAVAILABLE or len(details) > _LONGEST_DETAILS:
        return None
    text = _field(2, details.encode()) if details else b""
    status = b"\x08" + encode_varint(code) + text + _field(3, _DETAIL)
    return (("grpc-status-details-bin", status),)


def http_hint(code: int) -> Metadata | None:
    """Return the headers of an HTTP error made of ``code``; None for none."""
    return _RETRY_AFTER if code == _UNAVAILABLE else None
