"""A model executes a batch: requests are made of memory, and answers of responses."""

import asyncio
import contextlib
import gc
import os
import queue
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from services.worker.python_backend import messages, shared_memory
from services.worker.python_backend.frames import Frame, FrameSocket, Kind
from services.worker.python_backend.model.coroutines import Coroutines
from services.worker.python_backend.model.errors import (
    TritonError,
    TritonModelException,
    describe,
)
from services.worker.python_backend.model.open_streams import OpenStreams
from services.worker.python_backend.model.outbox import Again, Answer, Outbox
from services.worker.python_backend.model.request import InferenceRequest
from services.worker.python_backend.model.response import InferenceResponse
from services.worker.python_backend.model.room import Room
from services.worker.python_backend.model.sender import (
    InferenceResponseSender,
    ResponseStream,
)
from services.worker.python_backend.model.tensor import Tensor

# Kept inputs of this size are worth a look whether only a cycle keeps them.
_COLLECT_BYTES: Final = 1 << 20

_ABANDONED: Final = "the model let go of the request without sending a final response"

_Answer: TypeAlias = tuple[Answer, Sequence[str]]


class Names(NamedTuple):
    """What the tensors are called, in the configuration's order."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class ModelExecution:
    """Runs the batches of one instance, one after the other."""

    def __init__(
        self,
        model: Any,  # noqa: ANN401 - a TritonPythonModel
        *,
        instance: str,
        names: Names,
        is_decoupled: bool,
        events: FrameSocket,
    ) -> None:
        """Prepare.

        Args:
            model: Initialized.
            instance: Its name, for messages.
            names: Of the tensors.
            is_decoupled: Whether it answers through response senders.
            events: Where such answers go.
        """
        self._model = model
        self._instance = instance
        self._names = names
        self._is_decoupled = is_decoupled
        self._events = events
        self._outbox = Outbox(names.outputs)
        self._streaming = Outbox(names.outputs)
        self._coroutines = Coroutines()
        self._inputs: shared_memory.Arena | None = None
        self._unreferenced = 0
        self._has_failed = False
        self._open = OpenStreams()
        # Those that nobody can answer any longer.
        self._abandoned: queue.SimpleQueue[ResponseStream] = queue.SimpleQueue()
        if is_decoupled:
            threading.Thread(
                target=self._give_up, name="abandoned requests", daemon=True
            ).start()

    def run(self, frame: Frame) -> tuple[Kind, bytes, tuple[int, ...]]:
        """Answer EXECUTE: return kind, body and descriptors of the answer."""
        if frame.descriptors:
            self._inputs = shared_memory.adopt(frame.descriptors[0])
            self._unreferenced = sys.getrefcount(self._inputs.memory)
        self._has_failed = False
        answers = self._answers(frame.body)
        if self._is_decoupled and any(one is Again.AGAIN for one, _ in answers):
            # What it has streamed of a request is told before that it comes again.
            self._events.send(Kind.STREAMED_ALL, b"")
        numbers = (self._has_failed,)
        body, descriptors = self._outbox.pack(numbers, answers, reuse=True)
        del answers
        kind = Kind.DONE_AND_KEPT if self._drop_kept_inputs() else Kind.DONE
        return kind, body, descriptors

    def cancel(self, batch: int, index: int) -> None:
        """Note that nobody waits for the answer to a request; from any thread."""
        self._open.tell((batch, index), ResponseStream.cancel)

    def pause(self, batch: int, index: int) -> None:
        """Note that a request's reader is slow; from any thread."""
        self._open.tell((batch, index), ResponseStream.pause)

    def resume(self, batch: int, index: int) -> None:
        """Note that a request's reader has caught up; from any thread."""
        self._open.tell((batch, index), ResponseStream.resume)

    def give_up(self) -> None:
        """Note that nobody waits for anything: the worker is gone."""
        self._open.tell_all(ResponseStream.cancel)

    def _answers(self, body: bytes) -> list[_Answer]:
        """Return an answer for each request; None for those that stream."""
        batch, calls = messages.unpack_calls(body)
        outputs = self._names.outputs
        wanted = [[outputs[index] for index in call.outputs] for call in calls]
        senders = [
            _Sending(self, batch, index, names) for index, names in enumerate(wanted)
        ]
        if self._is_decoupled:
            self._open.begin(batch, [one.stream for one in senders])
        try:
            responses = self._execute(calls, senders)
        except BaseException as error:  # noqa: BLE001 - SystemExit as well
            responses = self._failed(describe(error), senders)
        return list(zip(responses, wanted, strict=True))

    def _request(
        self, call: messages.CallMessage, sending: "_Sending"
    ) -> InferenceRequest:
        memory = None if self._inputs is None else self._inputs.memory
        names = self._names.inputs
        return InferenceRequest.received(
            request_id=call.request_id,
            details=call.details,
            inputs=[
                Tensor.in_memory(names[index], datatype, shape, memory, offset)
                for index, datatype, offset, _, shape in call.inputs
            ],
            output_names=sending.wanted,
            sender=InferenceResponseSender(sending.stream),
        )

    def _execute(
        self, calls: Sequence[messages.CallMessage], senders: "Sequence[_Sending]"
    ) -> list[Answer]:
        # Nothing here refers to the requests, and thereby to their senders, but the
        # model: what it lets go of cannot be answered any more.
        responses = self._model.execute(list(map(self._request, calls, senders)))
        if asyncio.iscoroutine(responses):
            future = self._coroutines.start(responses)
            if self._is_decoupled:
                future.add_done_callback(partial(self._coroutine_done, senders))
                return [None] * len(calls)
            responses = future.result()
        if self._is_decoupled:
            if responses is not None:
                text = (
                    f"Python model '{self._instance}' is using the decoupled mode and"
                    " the execute function must return None."
                )
                return self._failed(text, senders)
            return [self._streaming_or_again(one) for one in senders]
        return self._checked(responses, senders)

    def _checked(
        self,
        responses: Any,  # noqa: ANN401 - what a model returned
        senders: "Sequence[_Sending]",
    ) -> list[Answer]:
        count = len(senders)
        if responses is None and all(one.stream.is_taken for one in senders):
            responses = [None] * count
        if not isinstance(responses, (list, tuple)):
            text = (
                "Expected a list in the execute return, found"
                f" {type(responses).__name__}."
            )
            return self._failed(text, senders)
        if len(responses) != count:
            text = (
                "Number of InferenceResponse objects do not match the number of"
                f" InferenceRequest objects. InferenceRequest(s) size is:{count}, and"
                f" InferenceResponse(s) size is:{len(responses)}\n"
            )
            return self._failed(text, senders)
        return [
            self._one(response, sending)
            for response, sending in zip(responses, senders, strict=True)
        ]

    def _one(
        self,
        response: Any,  # noqa: ANN401 - what a model returned
        sending: "_Sending",
    ) -> InferenceResponse | Again:
        if sending.stream.is_rescheduled:
            if response is None:
                return Again.AGAIN
            text = (
                "Expected a None object in the execute function return list for"
                f" reschduled request, found type '{type(response).__name__}'."
            )
            return InferenceResponse(error=TritonError(text))
        if response is None and sending.stream.is_taken:
            response = sending.only_response()
            if response is None and not sending.stream.is_closed:
                return InferenceResponse(error=TritonError(_ABANDONED))
        elif sending.stream.is_taken and not sending.stream.close():
            response = None
        if not isinstance(response, InferenceResponse):
            text = (
                "Expected an 'InferenceResponse' object in the execute function return"
                f" list, found type '{type(response).__name__}'."
            )
            return InferenceResponse(error=TritonError(text))
        return response

    def _streaming_or_again(self, sending: "_Sending") -> Answer:
        """Return whether a request of a decoupled model is wanted back."""
        if not sending.stream.is_rescheduled or not sending.stream.close():
            return None
        self._open.forget(sending.key)
        return Again.AGAIN

    def _failed(self, text: str, senders: "Sequence[_Sending]") -> list[Answer]:
        """Fail all requests that have not been answered."""
        self._has_failed = True
        for one in senders:
            self._open.forget(one.key)
        message = (
            "Failed to process the request(s) for model"
            f" '{self._instance}', message: {text}"
        )
        error = InferenceResponse(error=TritonError(message))
        return [
            error if one.stream.close() or not self._is_decoupled else None
            for one in senders
        ]

    def _give_up(self) -> None:
        """Fail what nobody can answer any longer, as long as the process lives."""
        error = InferenceResponse(error=TritonError(_ABANDONED))
        while True:
            stream = self._abandoned.get()
            # The model may have been quicker to say so, or the worker to leave.
            with contextlib.suppress(TritonModelException, OSError):
                stream.send(error, 1)
            del stream

    def _coroutine_done(self, senders: "Sequence[_Sending]", future: Any) -> None:  # noqa: ANN401 - of a coroutine
        error = future.exception()
        if error is None:
            return
        for sending in senders:
            if not sending.stream.is_closed:
                text = (
                    "Failed to process the request(s) for model"
                    f" '{self._instance}', message: {describe(error)}"
                )
                sending.stream.send(InferenceResponse(error=TritonError(text)), 1)

    def _drop_kept_inputs(self) -> bool:
        """Return whether the model still refers to its inputs; then they are its own.

        The memory is the model's until its last array is gone, and the next batch
        comes in another.
        """
        arena = self._inputs
        if arena is None or sys.getrefcount(arena.memory) <= self._unreferenced:
            return False
        if arena.size >= _COLLECT_BYTES and not self._is_decoupled:
            gc.collect()
            if sys.getrefcount(arena.memory) <= self._unreferenced:
                return False
        self._inputs = None
        return True


class _Sending:
    """One request's way back."""

    def __init__(
        self, execution: ModelExecution, batch: int, index: int, wanted: list[str]
    ) -> None:
        self._execution = execution
        self.key = (batch, index)
        self.wanted = wanted
        self._responses: list[InferenceResponse] = []
        self._finished: queue.SimpleQueue[None] = queue.SimpleQueue()
        if execution._is_decoupled:  # noqa: SLF001 - two halves of one thing
            self.stream = ResponseStream(self._send, self._abandoned, Room())
        else:
            self.stream = ResponseStream(self._keep, partial(self._finished.put, None))

    def only_response(self) -> InferenceResponse | None:
        """Wait for what a model that is not decoupled sends."""
        self._finished.get()
        return self._responses[0] if len(self._responses) == 1 else None

    def _keep(self, response: InferenceResponse | None, is_final: bool) -> None:  # noqa: FBT001 - a callback
        if response is not None:
            self._responses.append(response)
        if is_final:
            self._finished.put(None)

    def _abandoned(self) -> None:
        self._execution._abandoned.put(self.stream)  # noqa: SLF001

    def _send(self, response: InferenceResponse | None, is_final: bool) -> None:  # noqa: FBT001 - a callback
        execution = self._execution
        if is_final:
            execution._open.forget(self.key)  # noqa: SLF001
        body, descriptors = execution._streaming.pack(  # noqa: SLF001
            [*self.key, is_final], [(response, self.wanted)], reuse=False
        )
        try:
            execution._events.send(Kind.STREAMED, body, descriptors)  # noqa: SLF001
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
