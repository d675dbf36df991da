"""A model executes a batch: requests are made of memory, and answers of responses."""

import asyncio
import gc
import os
import queue
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from services.worker.python_backend import messages, shared_memory
from services.worker.python_backend.frames import Frame, FrameSocket, Kind
from services.worker.python_backend.model.coroutines import Coroutines
from services.worker.python_backend.model.errors import TritonError, describe
from services.worker.python_backend.model.outbox import Outbox
from services.worker.python_backend.model.request import InferenceRequest
from services.worker.python_backend.model.response import InferenceResponse
from services.worker.python_backend.model.sender import InferenceResponseSender
from services.worker.python_backend.model.tensor import Tensor

# Kept inputs of this size are worth a look whether only a cycle keeps them.
_COLLECT_BYTES: Final = 1 << 20

_Answer: TypeAlias = tuple[InferenceResponse | None, Sequence[str]]


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
        # The requests that may still be answered: batch and index.
        self._open: dict[tuple[int, int], InferenceResponseSender] = {}

    def run(self, frame: Frame) -> tuple[Kind, bytes, tuple[int, ...]]:
        """Answer EXECUTE: return kind, body and descriptors of the answer."""
        if frame.descriptors:
            self._inputs = shared_memory.adopt(frame.descriptors[0])
            self._unreferenced = sys.getrefcount(self._inputs.memory)
        self._has_failed = False
        answers = self._answers(frame.body)
        numbers = (self._has_failed,)
        body, descriptors = self._outbox.pack(numbers, answers, reuse=True)
        del answers
        kind = Kind.DONE_AND_KEPT if self._drop_kept_inputs() else Kind.DONE
        return kind, body, descriptors

    def cancel(self, batch: int, index: int) -> None:
        """Note that nobody waits for the answer to a request; from any thread."""
        sender = self._open.get((batch, index))
        if sender is not None:
            sender.cancel()

    def _answers(self, body: bytes) -> list[_Answer]:
        """Return an answer for each request; None for those that stream."""
        batch, calls = messages.unpack_calls(body)
        outputs = self._names.outputs
        wanted = [[outputs[index] for index in call.outputs] for call in calls]
        senders: list[_Sending] = []
        requests = []
        for index, call in enumerate(calls):
            sending = _Sending(self, batch, index, wanted[index])
            senders.append(sending)
            requests.append(self._request(call, wanted[index], sending.sender))
        try:
            responses = self._execute(requests, senders)
        except BaseException as error:  # noqa: BLE001 - SystemExit as well
            responses = self._failed(describe(error), senders)
        return list(zip(responses, wanted, strict=True))

    def _request(
        self,
        call: messages.CallMessage,
        wanted: list[str],
        sender: InferenceResponseSender,
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
            output_names=wanted,
            sender=sender,
        )

    def _execute(
        self, requests: list[InferenceRequest], senders: "Sequence[_Sending]"
    ) -> list[InferenceResponse | None]:
        responses = self._model.execute(requests)
        if asyncio.iscoroutine(responses):
            future = self._coroutines.start(responses)
            if self._is_decoupled:
                future.add_done_callback(partial(self._coroutine_done, senders))
                return [None] * len(requests)
            responses = future.result()
        if self._is_decoupled:
            if responses is not None:
                text = (
                    f"Python model '{self._instance}' is using the decoupled mode and"
                    " the execute function must return None."
                )
                return self._failed(text, senders)
            return [None] * len(requests)
        return self._checked(responses, senders)

    def _checked(
        self,
        responses: Any,  # noqa: ANN401 - what a model returned
        senders: "Sequence[_Sending]",
    ) -> list[InferenceResponse | None]:
        count = len(senders)
        if responses is None and all(one.sender.is_taken for one in senders):
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
    ) -> InferenceResponse:
        if response is None and sending.sender.is_taken:
            response = sending.only_response()
        elif sending.sender.is_taken and not sending.sender.close():
            response = None
        if not isinstance(response, InferenceResponse):
            text = (
                "Expected an 'InferenceResponse' object in the execute function return"
                f" list, found type '{type(response).__name__}'."
            )
            return InferenceResponse(error=TritonError(text))
        return response

    def _failed(
        self, text: str, senders: "Sequence[_Sending]"
    ) -> list[InferenceResponse | None]:
        """Fail all requests that have not been answered."""
        self._has_failed = True
        message = (
            "Failed to process the request(s) for model"
            f" '{self._instance}', message: {text}"
        )
        error = InferenceResponse(error=TritonError(message))
        return [
            error if one.sender.close() or not self._is_decoupled else None
            for one in senders
        ]

    def _coroutine_done(self, senders: "Sequence[_Sending]", future: Any) -> None:  # noqa: ANN401 - of a coroutine
        error = future.exception()
        if error is None:
            return
        for sending in senders:
            if not sending.sender.is_closed:
                text = (
                    "Failed to process the request(s) for model"
                    f" '{self._instance}', message: {describe(error)}"
                )
                sending.sender.send(InferenceResponse(error=TritonError(text)), 1)

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
        self._key = (batch, index)
        self._wanted = wanted
        self._responses: list[InferenceResponse] = []
        self._finished: queue.SimpleQueue[None] = queue.SimpleQueue()
        if execution._is_decoupled:  # noqa: SLF001 - two halves of one thing
            self.sender = InferenceResponseSender(self._stream)
            execution._open[self._key] = self.sender  # noqa: SLF001
        else:
            self.sender = InferenceResponseSender(self._keep)

    def only_response(self) -> InferenceResponse | None:
        """Wait for what a model that is not decoupled sends."""
        self._finished.get()
        return self._responses[0] if len(self._responses) == 1 else None

    def _keep(self, response: InferenceResponse | None, is_final: bool) -> None:  # noqa: FBT001 - a callback
        if response is not None:
            self._responses.append(response)
        if is_final:
            self._finished.put(None)

    def _stream(self, response: InferenceResponse | None, is_final: bool) -> None:  # noqa: FBT001 - a callback
        execution = self._execution
        if is_final:
            execution._open.pop(self._key, None)  # noqa: SLF001
        body, descriptors = execution._streaming.pack(  # noqa: SLF001
            [*self._key, is_final], [(response, self._wanted)], reuse=False
        )
        try:
            execution._events.send(Kind.STREAMED, body, descriptors)  # noqa: SLF001
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
