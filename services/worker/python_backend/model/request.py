"""Requests: those a model is given, and those it makes."""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol

from services.worker.python_backend.model.errors import TritonModelException
from services.worker.python_backend.model.response import InferenceResponse
from services.worker.python_backend.model.sender import InferenceResponseSender
from services.worker.python_backend.model.tensor import Tensor

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2
TRITONSERVER_REQUEST_RELEASE_ALL: Final = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: Final = 2

TRITONSERVER_MEMORY_CPU: Final = 0
TRITONSERVER_MEMORY_GPU: Final = 2


@dataclass(frozen=True)
class PreferredMemory:
    """Where the outputs of a call to another model should lie; a wish only."""

    memory_type: int = TRITONSERVER_MEMORY_CPU
    device_id: int = 0


class InferenceTrace:
    """The trace that a request belongs to; passed on, not looked into."""

    def __init__(self, token: str = "", traceparent: str = "") -> None:
        """Belong to what a router keeps under ``token``; "": to no trace."""
        self._token = token
        self._traceparent = traceparent

    def token(self) -> str:
        """Return what the router is told of it."""
        return self._token

    def get_context(self) -> str:
        """Return the OpenTelemetry context as JSON; "" if there is none.

        It is the context in which the client sent its request.
        """
        if not self._traceparent:
            return ""
        return json.dumps({"traceparent": self._traceparent})


class Caller(Protocol):
    """The way to other models."""

    def infer(self, request: "InferenceRequest") -> "Future[InferenceResponse]":
        """Have another model answer once."""
        ...

    def stream(self, request: "InferenceRequest") -> Any:  # noqa: ANN401 - an iterator
        """Have a decoupled model answer."""
        ...

    def manage(self, operation: str, **details: object) -> dict[str, Any]:
        """Have models loaded or unloaded, or ask whether one is ready."""
        ...


# Set by the process: one process, one model.
_callers: list[Caller] = []


def set_caller(caller: Caller) -> None:
    """Let calls to other models take this way."""
    _callers[:] = [caller]


def load_model(model_name: str, files: dict[str, bytes | str] | None = None) -> None:
    """Have a model loaded, or loaded again; files and configuration may be given.

    Args:
        model_name: In the repository.
        files: "config" with a configuration in JSON, and "file:<version>/<name>"
            with contents.

    Raises:
        TritonModelException: it cannot be loaded.
    """
    given = {
        key: value if isinstance(value, str) else value.decode("latin-1")
        for key, value in (files or {}).items()
    }
    _caller().manage("load", model=model_name, files=given)


def unload_model(
    model_name: str,
    unload_dependents: bool = False,  # noqa: FBT001, FBT002 - Triton's signature
) -> None:
    """Have a model unloaded, and on request what it consists of.

    Raises:
        TritonModelException: there is no such model.
    """
    _caller().manage("unload", model=model_name, dependents=unload_dependents)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model can be called."""
    found = _caller().manage("ready", model=model_name, version=model_version)
    return bool(found["ready"])


class InferenceRequest:
    """One request: received by ``execute``, or made to call another model."""

    def __init__(  # noqa: PLR0917 - Triton's signature
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: dict[str, object] | None = None,
    ) -> None:
        """Make a request to another model.

        Args:
            request_id: Comes back with the answer.
            correlation_id: Of the sequence, if it is part of one.
            inputs: The tensors.
            requested_output_names: The outputs that are wanted.
            model_name: Whom to ask.
            model_version: -1: the newest that is served.
            flags: Of a sequence: start, end.
            timeout: In microseconds, 0 for none.
            preferred_memory: Where the outputs should lie.
            trace: The trace to go on with.
            parameters: For the model: strings, whole numbers, floats and bools.
        """
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._output_names = list(requested_output_names)
        self._model_name = model_name
        self._model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._preferred_memory = preferred_memory or PreferredMemory()
        self._trace = trace or InferenceTrace()
        self._parameters = dict(parameters or {})
        self._sender: InferenceResponseSender | None = None

    @classmethod
    def received(
        cls,
        *,
        request_id: str,
        details: str,
        inputs: list[Tensor],
        output_names: list[str],
        sender: InferenceResponseSender,
    ) -> "InferenceRequest":
        """Return a request as ``execute`` is given it.

        Args:
            request_id: The client's.
            details: As ``messages.CallMessage`` has them.
            inputs: Its tensors.
            output_names: Those that are wanted.
            sender: The way back.
        """
        request = cls(request_id, 0, inputs, output_names)
        if details:
            found = json.loads(details)
            request._correlation_id = found.get("correlation_id", 0)
            request._flags = found.get("flags", 0)
            request._timeout = found.get("timeout", 0)
            request._parameters = found.get("parameters", {})
            request._trace = InferenceTrace(
                found.get("trace", ""), found.get("traceparent", "")
            )
        request._sender = sender
        return request

    def inputs(self) -> list[Tensor]:
        """Return the tensors."""
        return self._inputs

    def request_id(self) -> str:
        """Return the client's id; may be empty."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """Return the sequence's id; 0 if there is no sequence."""
        return self._correlation_id

    def requested_output_names(self) -> list[str]:
        """Return the outputs that are wanted."""
        return self._output_names

    def set_requested_output_names(self, names: Sequence[str]) -> None:
        """Want these outputs."""
        self._output_names = list(names)

    def model_name(self) -> str:
        """Return who is asked."""
        return self._model_name

    def model_version(self) -> int:
        """Return which version is asked; -1 for the newest."""
        return self._model_version

    def flags(self) -> int:
        """Return the sequence flags."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Set the sequence flags."""
        self._flags = flags

    def timeout(self) -> int:
        """Return the microseconds the request may take; 0: no limit."""
        return self._timeout

    def parameters(self) -> str:
        """Return the client's parameters as a JSON object."""
        return json.dumps(self._parameters)

    def parameter_values(self) -> dict[str, object]:
        """Return the parameters themselves."""
        return self._parameters

    def preferred_memory(self) -> PreferredMemory:
        """Return where the outputs should lie."""
        return self._preferred_memory

    def trace(self) -> InferenceTrace:
        """Return the trace it belongs to."""
        return self._trace

    def is_cancelled(self) -> bool:
        """Return whether nobody waits for the answer any longer."""
        return self._sender is not None and self._sender.is_cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the way back.

        Raises:
            TritonModelException: it was not received but made here.
        """
        if self._sender is None:
            raise TritonModelException(
                "a request that the model made itself has no response sender"
            )
        self._sender.take()
        return self._sender

    def set_release_flags(self, flags: int) -> None:
        """Say what becomes of the request after ``execute``.

        Raises:
            TritonModelException: unknown flags, or a request that was not received
                but made here.
        """
        known = (
            TRITONSERVER_REQUEST_RELEASE_ALL,
            TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
        )
        if flags not in known:
            raise TritonModelException(f"unknown release flags: {flags}")
        if self._sender is None:
            raise TritonModelException(
                "a request that the model made itself cannot be released"
            )
        again = flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
        self._sender.reschedule(again=again)

    def exec(
        self,
        decoupled: bool = False,  # noqa: FBT001, FBT002 - Triton's signature
        execution_timeout: int = 0,
    ) -> Any:  # noqa: ANN401 - a response, or an iterator of them
        """Have another model answer, and wait for it.

        Args:
            decoupled: Whether any number of responses may come.
            execution_timeout: In microseconds; in place of the request's own.

        Returns:
            A response, which may be an error; or an iterator of responses.
        """
        self._timeout = execution_timeout or self._timeout
        if decoupled:
            return _caller().stream(self)
        return _caller().infer(self).result()

    async def async_exec(
        self,
        decoupled: bool = False,  # noqa: FBT001, FBT002 - Triton's signature
        execution_timeout: int = 0,
    ) -> Any:  # noqa: ANN401 - a response, or an iterator of them
        """Have another model answer; as ``exec``, without blocking the thread."""
        self._timeout = execution_timeout or self._timeout
        if decoupled:
            return _caller().stream(self)
        return await asyncio.wrap_future(_caller().infer(self))


def _caller() -> Caller:
    if not _callers:
        raise TritonModelException("other models cannot be called from here")
    return _callers[0]
