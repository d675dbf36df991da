"""Calls that a model makes to other models, carried out by its worker."""

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

from services.core.errors import InvalidRequestError
from services.core.trace_token import TraceToken
from services.worker import peer_messages
from services.worker.peers import Cancel, Outcome, Peers
from services.worker.python_backend import call_messages
from services.worker.python_backend.call_messages import NamedTensor
from services.worker.python_backend.frames import Frame, Kind
from services.worker.python_backend.host.child import Child

_INVALID: Final = 3  # google.rpc.Code
_METHODS: Final = {
    "load": "RepositoryModelLoad",
    "unload": "RepositoryModelUnload",
    "ready": "ModelReady",
}

_Answer: TypeAlias = Callable[..., None]


class NestedCalls:
    """The calls of one instance that are under way."""

    def __init__(self, peers: Peers) -> None:
        """Begin without a call; ``peers`` is the way to other models."""
        self._peers = peers
        self._lock = threading.Lock()
        self._open: set[int] = set()
        self._cancels: dict[int, Cancel] = {}

    def begin(self, frame: Frame, child: Child) -> None:
        """Carry a CALL of ``child`` out; never waits for the answer."""
        header, tensors = call_messages.unpack(frame.body, frame.descriptors)
        number = header["call"]
        answer = partial(self._answer, child, number)
        with self._lock:
            self._open.add(number)
        operation = header["operation"]
        try:
            cancel = (
                self._infer(header, tensors, answer)
                if operation in {"infer", "stream"}
                else self._manage(operation, header, answer)
            )
        except (InvalidRequestError, ValueError) as error:
            answer((_INVALID, str(error)), is_final=True)
            return
        with self._lock:
            if number in self._open:
                self._cancels[number] = cancel

    def cancel(self, frame: Frame) -> None:
        """Carry a CANCEL_CALL out."""
        with self._lock:
            cancel = self._cancels.get(int(frame.body))
        if cancel is not None:
            cancel()

    def cancel_all(self) -> None:
        """End everything: the model's process has."""
        with self._lock:
            cancels = list(self._cancels.values())
            self._cancels.clear()
            self._open.clear()
        for cancel in cancels:
            cancel()

    def _infer(
        self, header: dict[str, Any], tensors: list[NamedTensor], answer: _Answer
    ) -> Cancel:
        request = peer_messages.infer_request(header, tensors)
        timeout_s = header["timeout_us"] / 1e6 or None
        trace = TraceToken.read(header["trace"])
        router = trace.endpoint if trace is not None else ""
        if header["operation"] == "stream":
            return self._peers.stream(
                request,
                timeout_s,
                lambda outcome: answer(
                    peer_messages.streamed_outcome(outcome), is_final=False
                ),
                lambda: answer(None, is_final=True),
                router=router,
            )
        return self._peers.call(
            "ModelInfer",
            request,
            timeout_s,
            lambda outcome: answer(outcome, is_final=True),
            router=router,
        )

    def _manage(
        self, operation: str, header: dict[str, Any], answer: _Answer
    ) -> Cancel:
        def done(outcome: Outcome) -> None:
            parameters = {}
            if operation == "ready" and isinstance(outcome, bytes):
                parameters["ready"] = peer_messages.is_ready(outcome)
            answer(
                b"" if isinstance(outcome, bytes) else outcome,
                is_final=True,
                parameters=parameters,
            )

        request = peer_messages.management_request(operation, header)
        return self._peers.call(_METHODS[operation], request, None, done)

    def _answer(
        self,
        child: Child,
        number: int,
        outcome: Outcome | None,
        *,
        is_final: bool,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        header = {
            "call": number,
            "is_final": is_final,
            "is_empty": outcome is None,
            "error": outcome if isinstance(outcome, tuple) else None,
            "parameters": parameters or {},
        }
        tensors: list[NamedTensor] = []
        if isinstance(outcome, bytes) and parameters is None:
            tensors, header["parameters"] = peer_messages.infer_response(outcome)
        body, descriptors = call_messages.pack(header, tensors)
        try:
            child.tell(Kind.ANSWER, body, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if is_final:
            with self._lock:
                self._open.discard(number)
                self._cancels.pop(number, None)
