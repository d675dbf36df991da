"""A serialized ModelInferRequest, looked at without parsing it. Pure."""

import hashlib
from typing import Final

from services.core.wire_format import WireFormatError, decode_varint, skip_field

_ID_FIELD: Final = 3
_DIGEST_BYTES: Final = 16


def content_digest(body: bytes) -> bytes:
    """Return a digest of all but the id, which changes from one try to the next."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    view = memoryview(body)
    position = 0
    try:
        while position < len(body):
            field, end = skip_field(body, position)
            if field != _ID_FIELD:
                digest.update(view[position:end])
            position = end
    except WireFormatError:
        digest.update(view[position:])
    return digest.digest()


def request_id(body: bytes) -> str:
    """Return the client's own id of its request; empty if it gave none."""
    text = ""
    position = 0
    try:
        while position < len(body):
            field, end = skip_field(body, position)
            if field == _ID_FIELD:
                _, start = decode_varint(body, position + 1)
                text = body[start:end].decode(errors="replace")
            position = end
    except WireFormatError:
        pass
    return text


def request_prefix(body: bytes) -> str:
    """Return how Triton begins a message about one request: with its id."""
    return f"[request id: {request_id(body) or '<id_unknown>'}] "
