"""REST requests and answers as the gateway frames them in gRPC messages. Pure.

A streamed body comes as many RestRequests: the first names what the path named,
each carries one piece. An answer leaves as HttpBody messages, of which the first
sets the Content-Type.

Source: google/api/httpbody.proto, and how Envoy's transcoder fills it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from protos import rest_pb2
from services.core.errors import InvalidRequestError
from services.core.wire_format import length_prefix
from services.router.rest_response import HttpReply

# What Envoy buffers for a connection: larger pieces would only wait there.
PIECE_BYTES: Final = 1 << 20
CONTENT_LENGTH: Final = "x-content-length"
ORIGINAL_PATH: Final = "x-envoy-original-path"

_CONTENT_TYPE_FIELD: Final = 1
_DATA_FIELD: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RestCall:
    """One message from the gateway.

    Attributes:
        model: From the path; "" if the path names none, or not the first message.
        version: The same.
        region: Of shared memory; the same.
        repository: The same.
        body: All of the body, or the next piece of it.
    """

    model: str = ""
    version: str = ""
    region: str = ""
    repository: str = ""
    body: bytes = b""


def decode_call(message: bytes, original_path: str = "") -> RestCall:
    """Read a serialized RestRequest.

    Args:
        message: As it arrived.
        original_path: From the header ``x-envoy-original-path``. Envoy decodes
            percent signs, Triton does not: to it they are part of a model's name.

    Raises:
        InvalidRequestError: a name in the path is no UTF-8.
    """
    try:
        request = rest_pb2.RestRequest.FromString(message)
    except DecodeError as error:
        raise InvalidRequestError("Unable to parse request") from error
    return RestCall(
        model=_literal_model(original_path) or request.model_name,
        version=request.model_version,
        region=request.region_name,
        repository=request.repository_name,
        body=request.body.data,
    )


def _literal_model(path: str) -> str:
    """Return the model that ``path`` names in percent signs, "" if there are none."""
    path = path.partition("?")[0]
    _, found, after = path.partition("/models/")
    return after.partition("/")[0] if found and "%" in after else ""


def check_complete(headers: Mapping[str, str], size_bytes: int) -> None:
    """Refuse a body that ended early: its client has left.

    Args:
        headers: Of the request; the gateway says in one what was promised.
        size_bytes: What came.

    Raises:
        InvalidRequestError: another size than promised.
    """
    promised = headers.get(CONTENT_LENGTH, "")
    if promised.isdigit() and promised != str(size_bytes):
        message = (
            f"the request body has {size_bytes} bytes, but its Content-Length is "
            f"{promised}"
        )
        raise InvalidRequestError(message)


def encode_reply(reply: HttpReply) -> bytes:
    """Return ``reply`` as one serialized HttpBody, for a unary method."""
    return _http_body(reply.content_type, reply.body)


def encode_pieces(reply: HttpReply, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """Yield ``reply`` as serialized HttpBody messages, for a streamed method.

    At least one, since the first one's Content-Type is the answer's.
    """
    body = memoryview(reply.body)
    for start in range(0, max(len(body), 1), piece_bytes):
        yield _http_body(reply.content_type, body[start : start + piece_bytes])


def _http_body(content_type: str, data: bytes | memoryview) -> bytes:
    kind = content_type.encode()
    return b"".join(
        (
            length_prefix(_CONTENT_TYPE_FIELD, len(kind)),
            kind,
            length_prefix(_DATA_FIELD, len(data)),
            data,
        )
    )
