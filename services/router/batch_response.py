"""The worker's BatchResponse, cut into its replies.

By hand, and without a copy more than the one slice that goes to the client.

Source: protos/worker.proto; field 1 is the timing, field 2 a Reply each.
"""

import struct
from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError

from protos import worker_pb2
from services.core.wire_format import WireFormatError, decode_varint

_TIMING_TAG: Final = 0x0A
_REPLY_TAG: Final = 0x12
_RESPONSE_TAG: Final = 0x0A
# Three fixed64 fields, each a byte of tag and eight of value.
_TIMING: Final = struct.Struct("<xQxQxQ")
_TIMING_PREFIX: Final = bytes((_TIMING_TAG, _TIMING.size))

Reply = tuple[bytes | None, worker_pb2.ReplyError | None]
Timing = tuple[int, int, int]
"""What the worker measured: input, infer, output; ns."""

RESCHEDULED: Final = worker_pb2.ReplyError(
    code=3,
    message="Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while "
    "the model is not configured to handle such a flag",
)
"""What stands for the error where a model wants a request back: is one, if the model
is not iterative."""


def timing_of(message: bytes) -> tuple[Timing, int]:
    """Return the durations (input, infer, output; ns) and where replies begin.

    Raises:
        WireFormatError: a timing stands there that cannot be read.
    """
    if message.startswith(_TIMING_PREFIX) and (
        message[2] == 0x09 and message[11] == 0x11 and message[20] == 0x19  # noqa: PLR2004
    ):
        return _TIMING.unpack_from(message, 2), 2 + _TIMING.size
    if message and message[0] == _TIMING_TAG:
        length, start = decode_varint(message, 1)
        try:
            timing = worker_pb2.BatchTiming.FromString(message[start : start + length])
        except DecodeError as error:
            raise WireFormatError(str(error)) from error
        durations = (
            timing.compute_input_ns,
            timing.compute_infer_ns,
            timing.compute_output_ns,
        )
        return durations, start + length
    return (0, 0, 0), 0


def replies_of(message: bytes, start: int) -> Iterator[Reply]:
    """Yield each reply from ``start`` on: a response's bytes, or an error.

    Hot: neighbours mostly have the same size, so what a response begins with (two
    tags, two lengths) is compared with that of the response before, and only read
    if it differs: 0.2 us a reply against 0.7.
    The very object RESCHEDULED is the error of a request that the model wants back.

    Raises:
        WireFormatError: the message is not a BatchResponse.
    """
    end = len(message)
    position = start
    opening = b""
    size = 0
    while position < end:
        if opening and message.startswith(opening, position):
            content = position + len(opening)
            position = content + size
            yield message[content:position], None
            continue
        if message[position] != _REPLY_TAG:
            text = f"unexpected tag {message[position]} in a batch response"
            raise WireFormatError(text)
        length, inside = decode_varint(message, position + 1)
        behind = inside + length
        if not length:
            # Of a decoupled model: answered by streamed replies.
            yield None, None
        elif message[inside] == _RESPONSE_TAG:
            size, content = decode_varint(message, inside + 1)
            if content + size != behind:
                text = "a reply of a batch response has a wrong length"
                raise WireFormatError(text)
            opening = message[position:content]
            yield message[content:behind], None
        else:
            reply = _reply_of(message[inside:behind])
            yield None, RESCHEDULED if reply.rescheduled else reply.error
        position = behind


def _reply_of(content: bytes) -> worker_pb2.Reply:
    try:
        return worker_pb2.Reply.FromString(content)
    except DecodeError as error:
        raise WireFormatError(str(error)) from error
