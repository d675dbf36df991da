"""The bodies of frames: whole numbers, then bytes whose lengths are among them.

Both sides' halves of each message stand side by side. Nothing here executes what it
reads, so a broken model process cannot do more than answer wrongly.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

_COUNT: Final = struct.Struct("<I")
_WORD_BYTES: Final = 8


class TensorPlace(NamedTuple):
    """Where a tensor lies.

    Attributes:
        slot: Of its name among the configuration's inputs, or outputs.
        datatype: A number of inference.DataType.
        offset: Of its first byte in the arena, a multiple of 64.
        size: In bytes.
        shape: As the model sees it.
    """

    slot: int
    datatype: int
    offset: int
    size: int
    shape: tuple[int, ...]


class CallMessage(NamedTuple):
    """One request for the model.

    Attributes:
        request_id: The client's; may be empty.
        details: A JSON object with what is not at its default: ``parameters``,
            ``correlation_id``, ``flags``, ``timeout``, ``priority``, ``trace``,
            ``traceparent``; or "".
        outputs: Indices of the outputs that are wanted.
        inputs: Its tensors.
    """

    request_id: str
    details: str
    outputs: tuple[int, ...]
    inputs: tuple[TensorPlace, ...]


class ReplyMessage(NamedTuple):
    """One answer of the model.

    Attributes:
        code: 0, or the google.rpc.Code of an error.
        text: Of the error.
        parameters: A JSON object, or "".
        outputs: Its tensors.
    """

    code: int
    text: str
    parameters: str
    outputs: tuple[TensorPlace, ...]


RESCHEDULED: Final = ReplyMessage(-1, "", "", ())
"""Stands for an answer where the model wants the request back."""

_NOTHING: Final = -1
_AGAIN: Final = -2


def pack(words: Sequence[int], blobs: Sequence[bytes]) -> bytes:
    """Return a body."""
    count = len(words)
    numbers = struct.pack(f"<{count}q", *words)
    return b"".join((_COUNT.pack(count), numbers, *blobs))


def unpack(body: bytes) -> tuple[Iterator[int], bytes]:
    """Return the words of a body, and the bytes behind them."""
    (count,) = _COUNT.unpack_from(body)
    words = struct.unpack_from(f"<{count}q", body, _COUNT.size)
    return iter(words), body[_COUNT.size + count * _WORD_BYTES :]


def pack_calls(batch: int, calls: Sequence[CallMessage]) -> bytes:
    """Return the body of EXECUTE."""
    words: list[int] = [batch, len(calls)]
    blobs: list[bytes] = []
    for call in calls:
        request_id, details = call.request_id.encode(), call.details.encode()
        words += (len(request_id), len(details), len(call.outputs), *call.outputs)
        _add_tensors(words, call.inputs)
        blobs += (request_id, details)
    return pack(words, blobs)


def unpack_calls(body: bytes) -> tuple[int, list[CallMessage]]:
    """Return what ``pack_calls`` was given."""
    words, blob = unpack(body)
    take = words.__next__
    batch, calls, position = take(), [], 0
    for _ in range(take()):
        id_end = position + take()
        details_end = id_end + take()
        outputs = tuple([take() for _ in range(take())])
        calls.append(
            CallMessage(
                blob[position:id_end].decode(),
                blob[id_end:details_end].decode(),
                outputs,
                _take_tensors(words),
            )
        )
        position = details_end
    return batch, calls


def pack_replies(
    numbers: Sequence[int], replies: Sequence[ReplyMessage | None]
) -> bytes:
    """Return the body of an answer to EXECUTE, or of STREAMED.

    Args:
        numbers: What stands before the replies, the same number of them in every
            message of a kind.
        replies: None where there is nothing to say (yet).
    """
    words: list[int] = [*numbers, len(replies)]
    blobs: list[bytes] = []
    for reply in replies:
        if reply is None or reply is RESCHEDULED:
            words.append(_NOTHING if reply is None else _AGAIN)
            continue
        text, parameters = reply.text.encode(), reply.parameters.encode()
        words += (reply.code, len(text), len(parameters))
        _add_tensors(words, reply.outputs)
        blobs += (text, parameters)
    return pack(words, blobs)


def unpack_replies(
    body: bytes, count: int
) -> tuple[list[int], list[ReplyMessage | None], memoryview]:
    """Return what ``pack_replies`` was given, and what was put behind it.

    Args:
        body: Of the frame.
        count: Of numbers.
    """
    words, blob = unpack(body)
    take = words.__next__
    numbers = [take() for _ in range(count)]
    replies: list[ReplyMessage | None] = []
    position = 0
    for _ in range(take()):
        code = take()
        if code in {_NOTHING, _AGAIN}:
            replies.append(None if code == _NOTHING else RESCHEDULED)
            continue
        text_end = position + take()
        parameters_end = text_end + take()
        replies.append(
            ReplyMessage(
                code,
                blob[position:text_end].decode(errors="replace"),
                blob[text_end:parameters_end].decode(),
                _take_tensors(words),
            )
        )
        position = parameters_end
    return numbers, replies, memoryview(blob)[position:]


def _add_tensors(words: list[int], tensors: Sequence[TensorPlace]) -> None:
    words.append(len(tensors))
    for slot, datatype, offset, size, shape in tensors:
        words += (slot, datatype, offset, size, len(shape), *shape)


def _take_tensors(words: Iterator[int]) -> tuple[TensorPlace, ...]:
    take = words.__next__
    return tuple(
        [
            TensorPlace(
                take(),
                take(),
                take(),
                take(),
                tuple([take() for _ in range(take())]),
            )
            for _ in range(take())
        ]
    )
