"""BYTES tensors: each element behind its length, 4 bytes, little-endian.

Source:
    The binary tensor data extension of Triton's protocol; element counts and
    messages as its server has them.
"""

import struct
from collections.abc import Iterable
from typing import Final

from services.core.errors import InvalidRequestError

_LENGTH: Final = struct.Struct("<I")


def encode(elements: Iterable[bytes | str]) -> bytes:
    """Return the elements in row-major order as one buffer.

    Args:
        elements: Below 4 GiB each; a str becomes UTF-8.
    """
    parts: list[bytes] = []
    for element in elements:
        content = element.encode() if isinstance(element, str) else bytes(element)
        parts += (_LENGTH.pack(len(content)), content)
    return b"".join(parts)


def decode(buffer: bytes | memoryview) -> list[bytes]:
    """Return the elements of ``buffer``, a memoryview being one of bytes.

    Raises:
        InvalidRequestError: the last element is cut off.
    """
    elements: list[bytes] = []
    offset, end = 0, len(buffer)
    while end - offset >= _LENGTH.size:
        start = offset + _LENGTH.size
        offset = start + _LENGTH.unpack_from(buffer, offset)[0]
        if offset > end:
            msg = _cut_element("", offset - start, end - start)
            raise InvalidRequestError(msg)
        elements.append(bytes(buffer[start:offset]))
    if offset < end:
        raise InvalidRequestError(_cut_length("", end - offset))
    return elements


def validate(
    buffer: bytes | memoryview,
    element_count: int,
    *,
    tensor_name: str,
    model_name: str,
    prefix: str = "",
) -> None:
    """Refuse a buffer that does not hold exactly ``element_count`` elements.

    Args:
        buffer: A memoryview must be one of bytes.
        element_count: As the shape says; 0 wants an empty buffer.
        tensor_name: The input, for the message.
        model_name: The same.
        prefix: Begins each message but the one about a cut-off element, as it
            is with Triton: usually "[request id: ...] ".

    Raises:
        InvalidRequestError: too many or too few elements, or the last one is
            cut off.
    """
    tensor = f" for inference input '{tensor_name}'"
    subject = f"{tensor} for model '{model_name}'"
    count, offset, end = 0, 0, len(buffer)
    while end - offset >= _LENGTH.size:
        count += 1
        if count > element_count:
            msg = (
                f"{prefix}unexpected number of string elements {count}{subject},"
                f" expecting {element_count}"
            )
            raise InvalidRequestError(msg)
        start = offset + _LENGTH.size
        offset = start + _LENGTH.unpack_from(buffer, offset)[0]
        if offset > end:
            msg = _cut_element(tensor, offset - start, end - start)
            raise InvalidRequestError(msg)
    if offset < end:
        raise InvalidRequestError(prefix + _cut_length(subject, end - offset))
    if count < element_count:
        msg = f"{prefix}expected {element_count} string elements{subject}, got {count}"
        raise InvalidRequestError(msg)


def _cut_element(subject: str, length: int, available: int) -> str:
    return (
        f"incomplete string data{subject}, expecting string of length {length}"
        f" but only {available} bytes available"
    )


def _cut_length(subject: str, available: int) -> str:
    return (
        f"incomplete string length indicator{subject}, expecting {_LENGTH.size} bytes"
        f" but only {available} bytes available. Please make sure the string length"
        " indicator is in one buffer."
    )
