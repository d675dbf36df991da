"""Answers on their way to the worker."""

import enum
import json
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from services.worker.python_backend import messages, shared_memory
from services.worker.python_backend.messages import ReplyMessage, TensorPlace
from services.worker.python_backend.model import tensor
from services.worker.python_backend.model.errors import RPC_CODES
from services.worker.python_backend.model.response import InferenceResponse

# Up to here tensors travel behind the message itself, which costs a copy, but
# neither page nor descriptor.
INLINE_BYTES: Final = 1 << 14

INLINE: Final = 0
IN_ARENA: Final = 1


class Again(enum.Enum):
    """In place of an answer: the model wants the request back."""

    AGAIN = enum.auto()


Answer: TypeAlias = InferenceResponse | Again | None

_WORDLESS: Final = {None: None, Again.AGAIN: messages.RESCHEDULED}


class Outbox:
    """Lays out answers, their tensors inline or in shared memory."""

    def __init__(self, output_names: Sequence[str]) -> None:
        """Know the outputs' indices."""
        self._indices = {name: index for index, name in enumerate(output_names)}
        self._arena: shared_memory.Arena | None = None

    def pack(
        self,
        numbers: Sequence[int],
        answers: Sequence[tuple[Answer, Sequence[str]]],
        *,
        reuse: bool,
    ) -> tuple[bytes, tuple[int, ...]]:
        """Return a body and the descriptors that go with it.

        Args:
            numbers: As in ``messages.pack_replies``; before them comes where the
                tensors lie.
            answers: Each with the names of the outputs that are wanted; what is
                not wanted is left out.
            reuse: Whether the worker has done with what was packed before.
        """
        contents: list[Any] = []
        sizes: list[int] = []
        found = []
        for response, wanted in answers:
            tensors = self._wanted(response, wanted)
            for _, one in tensors:
                size, content = tensor.contents(one)
                sizes.append(size)
                contents.append(content)
            found.append((response, tensors))
        offsets, total = shared_memory.places(sizes)
        layout = iter(zip(offsets, sizes, strict=True))
        replies = [
            _reply(response, tensors, layout)
            if isinstance(response, InferenceResponse)
            else _WORDLESS[response]
            for response, tensors in found
        ]
        if total <= INLINE_BYTES:
            body = messages.pack_replies([INLINE, *numbers], replies)
            return body + _joined(offsets, contents, total), ()
        memory, descriptors = self._room(total, reuse=reuse)
        for offset, content in zip(offsets, contents, strict=True):
            tensor.write(memory, offset, content)
        return messages.pack_replies([IN_ARENA, *numbers], replies), descriptors

    def _wanted(
        self, response: Answer, wanted: Sequence[str]
    ) -> list[tuple[int, tensor.Tensor]]:
        if not isinstance(response, InferenceResponse) or response.has_error():
            return []
        return [
            (self._indices[one.name()], one)
            for one in response.output_tensors()
            if one.name() in wanted
        ]

    def _room(self, size: int, *, reuse: bool) -> tuple[Any, tuple[int, ...]]:
        if not reuse:
            arena, descriptor = shared_memory.create(size)
            return arena.memory, (descriptor,)
        if self._arena is None or self._arena.size < size:
            self._arena, descriptor = shared_memory.create(size)
            return self._arena.memory, (descriptor,)
        return self._arena.memory, ()


def _reply(
    response: InferenceResponse,
    tensors: Sequence[tuple[int, tensor.Tensor]],
    layout: Any,  # noqa: ANN401 - an iterator of offsets and sizes
) -> ReplyMessage:
    error = response.error()
    if error is not None:
        return ReplyMessage(RPC_CODES.get(error.code(), 13), error.message(), "", ())
    parameters = response.parameter_values()
    return ReplyMessage(
        0,
        "",
        json.dumps(parameters) if parameters else "",
        tuple(
            [
                TensorPlace(slot, one.datatype, offset, size, one.shape())
                for (slot, one), (offset, size) in zip(
                    tensors, islice(layout, len(tensors)), strict=True
                )
            ]
        ),
    )


def _joined(offsets: Sequence[int], contents: Sequence[Any], total: int) -> bytes:
    if not total:
        return b""
    parts: list[bytes] = []
    position = 0
    for offset, content in zip(offsets, contents, strict=True):
        data = content if isinstance(content, bytes) else content.tobytes()
        parts += (bytes(offset - position), data)
        position = offset + len(data)
    return b"".join(parts)
