"""Where the requests of a BatchRequest lie."""

from collections.abc import Iterator
from typing import Final

from services.core import wire_format

_REQUEST_TAG: Final = 0x12


def request_spans(message: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each serialized request.

    Raises:
        WireFormatError: the message is no BatchRequest.
    """
    position, end = 0, len(message)
    while position < end:
        if message[position] != _REQUEST_TAG:
            text = f"unexpected field at byte {position} of a batch"
            raise wire_format.WireFormatError(text)
        length, start = wire_format.decode_varint(message, position + 1)
        position = start + length
        if position > end:
            text = "a batch ends in the middle of a request"
            raise wire_format.WireFormatError(text)
        yield start, position
