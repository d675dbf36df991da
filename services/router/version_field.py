"""The version that a serialized request or response names, replaced. Pure.

ModelInferRequest and ModelInferResponse both begin with the model's name and the
version, as encoders write them.
"""

from typing import Final

from services.core.wire_format import (
    WireFormatError,
    decode_varint,
    length_prefix,
)

_NAME_TAG: Final = 0x0A
_VERSION_TAG: Final = 0x12
_VERSION_FIELD: Final = 2


def model_name(body: bytes) -> tuple[bytes, int]:
    """Return the name that ``body`` begins with, and where it ends.

    Raises:
        WireFormatError: it begins with something else.
    """
    if not body or body[0] != _NAME_TAG:
        message = "the message does not begin with the name of a model"
        raise WireFormatError(message)
    size, start = decode_varint(body, 1)
    return body[start : start + size], start + size


def names_version(body: bytes, end: int) -> bool:
    """Whether a version follows the name, which ends at ``end``."""
    return body[end : end + 1] == bytes((_VERSION_TAG,))


def with_version(body: bytes, version: bytes) -> bytes:
    """Return ``body`` with ``version``, whether it named one or not.

    Raises:
        WireFormatError: it does not begin with the name of a model.
    """
    _, end = model_name(body)
    rest = end
    if names_version(body, end):
        size, start = decode_varint(body, end + 1)
        rest = start + size
    prefix = length_prefix(_VERSION_FIELD, len(version))
    # A view: tensors are copied once.
    return b"".join((body[:end], prefix, version, memoryview(body)[rest:]))
