"""Calls from a model to other models."""

import asyncio
import itertools
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final

from services.worker.python_backend import call_messages
from services.worker.python_backend.call_messages import NamedTensor
from services.worker.python_backend.frames import Frame, FrameSocket, Kind
from services.worker.python_backend.model.errors import (
    TRITON_CODES,
    TritonError,
    TritonModelException,
)
from services.worker.python_backend.model.request import InferenceRequest
from services.worker.python_backend.model.response import InferenceResponse
from services.worker.python_backend.model.tensor import Tensor, contents

_GONE: Final = "the worker does not answer any longer"


class ResponseIterator:
    """The responses to one call, as they come; to be iterated with or without async."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        """Begin without a response."""
        self._cancel = cancel
        self._responses: queue.SimpleQueue[InferenceResponse | None] = (
            queue.SimpleQueue()
        )
        self._is_over = False

    def put(self, response: InferenceResponse | None, *, is_final: bool) -> None:
        """Add a response, or the end."""
        if response is not None:
            self._responses.put(response)
        if is_final:
            self._responses.put(None)

    def cancel(self) -> None:
        """Say that no further response is wanted."""
        self._cancel()

    def __iter__(self) -> Iterator[InferenceResponse]:
        """Return itself."""
        return self

    def __next__(self) -> InferenceResponse:
        """Wait for the next response."""
        response = None if self._is_over else self._responses.get()
        if response is None:
            self._is_over = True
            raise StopIteration
        return response

    def __aiter__(self) -> AsyncIterator[InferenceResponse]:
        """Return itself."""
        return self

    async def __anext__(self) -> InferenceResponse:
        """Wait for the next response without blocking the loop."""
        response = await asyncio.get_running_loop().run_in_executor(
            None, next, self, None
        )
        if response is None:
            raise StopAsyncIteration
        return response


class OtherModels:
    """The way to other models, through the worker; for any thread."""

    def __init__(self, events: FrameSocket) -> None:
        """Know where calls go."""
        self._events = events
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Callable[[InferenceResponse | None, bool], None]] = {}

    def infer(self, request: InferenceRequest) -> "Future[InferenceResponse]":
        """Have another model answer once."""
        future: Future[InferenceResponse] = Future()

        def answered(response: InferenceResponse | None, _is_final: bool) -> None:  # noqa: FBT001 - a callback
            future.set_result(response or InferenceResponse())

        self._send("infer", request, answered)
        return future

    def stream(self, request: InferenceRequest) -> ResponseIterator:
        """Have a decoupled model answer."""
        number = -1

        def cancel() -> None:
            self._events.send(Kind.CANCEL_CALL, str(number).encode())

        responses = ResponseIterator(cancel)
        number = self._send(
            "stream",
            request,
            lambda response, is_final: responses.put(response, is_final=is_final),
        )
        return responses

    def manage(self, operation: str, **details: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """Have models loaded or unloaded, or ask whether one is ready.

        Raises:
            TritonModelException: it was refused.
        """
        future: Future[InferenceResponse] = Future()
        self._order(
            {"operation": operation, **details},
            [],
            lambda response, _: future.set_result(response or InferenceResponse()),
        )
        response = future.result()
        error = response.error()
        if error is not None:
            raise TritonModelException(error.message())
        return response.parameter_values()

    def answered(self, frame: Frame) -> None:
        """Take an ANSWER."""
        header, tensors = call_messages.unpack(frame.body, frame.descriptors)
        is_final = header["is_final"]
        with self._lock:
            take = self._waiting.get(header["call"])
            if is_final:
                self._waiting.pop(header["call"], None)
        if take is not None:
            take(_response(header, tensors), is_final)

    def give_up(self) -> None:
        """Fail what is waiting: the worker is gone."""
        with self._lock:
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for take in waiting:
            take(InferenceResponse(error=TritonError(_GONE)), True)  # noqa: FBT003 - final

    def _send(
        self,
        operation: str,
        request: InferenceRequest,
        take: Callable[[InferenceResponse | None, bool], None],
    ) -> int:
        header = {
            "operation": operation,
            "model": request.model_name(),
            "version": request.model_version(),
            "id": request.request_id(),
            "outputs": request.requested_output_names(),
            "parameters": request.parameter_values(),
            "correlation_id": request.correlation_id(),
            "flags": request.flags(),
            "timeout_us": request.timeout(),
            "trace": request.trace().token(),
        }
        return self._order(header, [_named(one) for one in request.inputs()], take)

    def _order(
        self,
        header: dict[str, Any],
        tensors: list[NamedTensor],
        take: Callable[[InferenceResponse | None, bool], None],
    ) -> int:
        number = next(self._numbers)
        body, descriptors = call_messages.pack({**header, "call": number}, tensors)
        with self._lock:
            self._waiting[number] = take
        try:
            self._events.send(Kind.CALL, body, descriptors)
        except OSError as error:
            raise TritonModelException(_GONE) from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return number


def _named(tensor: Tensor) -> NamedTensor:
    _, content = contents(tensor)
    data = content if isinstance(content, bytes) else content.tobytes()
    return NamedTensor(tensor.name(), tensor.datatype, tensor.shape(), data)


def _response(
    header: dict[str, Any], tensors: list[NamedTensor]
) -> InferenceResponse | None:
    """Return a response; None if the answer only says that there will be no more."""
    if header["error"] is not None:
        code, text = header["error"]
        return InferenceResponse(error=TritonError(text, TRITON_CODES.get(code, 0)))
    if header["is_empty"]:
        return None
    return InferenceResponse(
        [
            Tensor.in_memory(name, datatype, shape, data, 0)
            for name, datatype, shape, data in tensors
        ],
        parameters=header["parameters"],
    )
