"""Batches on their way to a model's process, and answers on their way back."""

import json
import os
from collections.abc import Sequence
from typing import Final

from services.core.datatype import DataType
from services.core.trace_token import TraceToken
from services.worker.backend import (
    BackendAnswer,
    BackendCall,
    BackendFailure,
    BackendReply,
    ReplyTensor,
    Rescheduled,
)
from services.worker.python_backend import messages, shared_memory
from services.worker.python_backend.frames import Frame, Kind
from services.worker.python_backend.host.child import Child
from services.worker.python_backend.messages import (
    CallMessage,
    ReplyMessage,
    TensorPlace,
)
from services.worker.request_details import NO_DETAILS, RequestDetails

_IN_ARENA: Final = 1


class TensorExchange:
    """The shared memory of one process; for the thread that executes."""

    def __init__(self, datatypes: Sequence[DataType]) -> None:
        """Begin without memory.

        Args:
            datatypes: Of the inputs, in the configuration's order.
        """
        self._datatypes = [one.config_number for one in datatypes]
        self._inputs: shared_memory.Arena | None = None
        self._outputs: shared_memory.Arena | None = None

    def forget(self) -> None:
        """Let go of the memory: the process has ended."""
        self._inputs = self._outputs = None

    def execute(self, child: Child, batch: int, calls: Sequence[BackendCall]) -> Frame:
        """Put the inputs into shared memory and have the model execute them.

        Raises:
            ProcessGoneError: the process has ended.
        """
        tensors = [tensor for call in calls for tensor in call.inputs]
        offsets, size = shared_memory.places([len(one.data) for one in tensors])
        arena, descriptor = self._inputs, -1
        if arena is None or arena.size < size:
            arena, descriptor = shared_memory.create(size)
            self._inputs = arena
        memory = arena.memory
        places = []
        for (slot, shape, data), offset in zip(tensors, offsets, strict=True):
            length = len(data)
            memory[offset : offset + length] = data
            datatype = self._datatypes[slot]
            places.append(TensorPlace(slot, datatype, offset, length, shape))
        body = messages.pack_calls(batch, _call_messages(calls, places))
        if descriptor < 0:
            frame = child.order(Kind.EXECUTE, body)
        else:
            try:
                frame = child.order(Kind.EXECUTE, body, (descriptor,))
            finally:
                os.close(descriptor)
        if frame.kind == Kind.DONE_AND_KEPT:
            self._inputs = None
        return frame

    def answers(self, frame: Frame) -> list[BackendAnswer | None]:
        """Return what the model answered, None where it said nothing.

        The tensors lie in memory that the next batch may write to.
        """
        (place, failed), replies, payload = messages.unpack_replies(frame.body, 2)
        if frame.descriptors:
            self._outputs = shared_memory.adopt(frame.descriptors[0])
        if place == _IN_ARENA and self._outputs is not None:
            payload = memoryview(self._outputs.memory)
        return [_answer(reply, payload, is_answer=not failed) for reply in replies]


def streamed_answer(
    frame: Frame,
) -> tuple[tuple[int, int], BackendAnswer | None, bool]:
    """Return batch and call of STREAMED, the answer, and whether it is the last."""
    numbers, replies, payload = messages.unpack_replies(frame.body, 4)
    place, batch, call, is_final = numbers
    if place == _IN_ARENA:
        arena = shared_memory.adopt(frame.descriptors[0])
        payload = memoryview(arena.memory)
    return (batch, call), _answer(replies[0], payload, is_answer=True), bool(is_final)


def _call_messages(
    calls: Sequence[BackendCall], places: Sequence[TensorPlace]
) -> list[CallMessage]:
    found, first = [], 0
    for request_id, inputs, outputs, details in calls:
        last = first + len(inputs)
        found.append(
            CallMessage(
                request_id, _details(details), outputs, tuple(places[first:last])
            )
        )
        first = last
    return found


def _answer(
    reply: ReplyMessage | None, payload: memoryview, *, is_answer: bool
) -> BackendAnswer | None:
    if reply is None:
        return None
    if reply is messages.RESCHEDULED:
        return Rescheduled()
    if reply.code:
        return BackendFailure(reply.code, reply.text, is_answer)
    return BackendReply(
        tuple(
            [
                ReplyTensor(
                    slot,
                    DataType.from_config(datatype),
                    shape,
                    payload[offset : offset + size],
                )
                for slot, datatype, offset, size, shape in reply.outputs
            ]
        ),
        json.loads(reply.parameters) if reply.parameters else {},
    )


def _details(details: RequestDetails) -> str:
    """Return the JSON of what is not at its default; "" if all is."""
    if details is NO_DETAILS:
        return ""
    found = {
        "parameters": dict(details.parameters),
        "correlation_id": details.correlation_id,
        "flags": details.flags,
        "timeout": details.timeout_us,
        "priority": details.priority,
        "trace": details.trace,
        "traceparent": _traceparent(details.trace),
    }
    return json.dumps({key: value for key, value in found.items() if value})


def _traceparent(trace: str) -> str:
    token = TraceToken.read(trace) if trace else None
    return token.traceparent if token is not None else ""
