"""One instance of a Python model, and the process in which it lives."""

import json
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from services.core.datatype import DataType
from services.core.errors import BackendError
from services.worker.backend import (
    BackendAnswer,
    BackendCall,
    BackendFailure,
    BackendReply,
    ReplyTensor,
)
from services.worker.backoff import Backoff
from services.worker.python_backend import messages, shared_memory
from services.worker.python_backend.frames import Frame, Kind
from services.worker.python_backend.host.child import Child, ProcessGoneError
from services.worker.python_backend.messages import (
    CallMessage,
    ReplyMessage,
    TensorPlace,
)
from services.worker.request_details import NO_DETAILS, RequestDetails

_LEVELS: Final = ("info", "warning", "error", "debug")
_IN_ARENA: Final = 1

_log = structlog.get_logger(__name__)

Start = Callable[[Callable[[Frame], None]], Child]


class PythonInstance:
    """One instance; see RequestBackend.

    Its process may die at any time, and is started again.
    """

    def __init__(
        self,
        name: str,
        start: Start,
        order: bytes,
        datatypes: Sequence[DataType],
    ) -> None:
        """Start the process and initialize the model.

        Args:
            name: As Triton names it, e.g. "simple_0_0".
            start: Starts a process, given who listens to its events.
            order: The body of INITIALIZE.
            datatypes: Of the inputs, in the configuration's order.

        Raises:
            BackendError: the model cannot be initialized.
        """
        self._name = name
        self._start = start
        self._order = order
        self._datatypes = [one.config_number for one in datatypes]
        self._batch = 0
        self._inputs: shared_memory.Arena | None = None
        self._outputs: shared_memory.Arena | None = None
        self._lock = threading.Condition()
        self._is_unloaded = False
        self._is_restarting = False
        self._child: Child | None = self._initialized()

    @property
    def pid(self) -> int:
        """The process's number; 0 while there is none."""
        child = self._child
        return 0 if child is None else child.pid

    def execute_requests(self, calls: Sequence[BackendCall]) -> list[BackendAnswer]:
        """Run one batch; see RequestBackend."""
        child = self._healthy()
        try:
            frame = self._ordered(child, calls)
        except ProcessGoneError as error:
            self._lost(child)
            raise BackendError(self._unhealthy()) from error
        if frame.kind == Kind.FAILED:
            raise BackendError(frame.body.decode(errors="replace"))
        if frame.kind == Kind.DONE_AND_KEPT:
            self._inputs = None
        return self._answers(frame)

    def unload(self) -> None:
        """Finalize the model and end its process."""
        with self._lock:
            self._is_unloaded = True
            child, self._child = self._child, None
            self._lock.notify_all()
        if child is not None:
            child.close()
        self._inputs = self._outputs = None

    def _ordered(self, child: Child, calls: Sequence[BackendCall]) -> Frame:
        """Put the inputs into shared memory and have the model execute them."""
        tensors = [tensor for call in calls for tensor in call.inputs]
        offsets, size = shared_memory.places([len(one.data) for one in tensors])
        arena, descriptor = self._inputs, -1
        if arena is None or arena.size < size:
            arena, descriptor = shared_memory.create(size)
            self._inputs = arena
        memory = arena.memory
        places = []
        for (index, shape, data), offset in zip(tensors, offsets, strict=True):
            length = len(data)
            memory[offset : offset + length] = data
            places.append(
                TensorPlace(index, self._datatypes[index], offset, length, shape)
            )
        after = iter(places)
        body = messages.pack_calls(
            self._batch,
            [
                CallMessage(
                    call.request_id,
                    _details(call.details),
                    call.outputs,
                    tuple([next(after) for _ in call.inputs]),
                )
                for call in calls
            ],
        )
        self._batch += 1
        if descriptor < 0:
            return child.order(Kind.EXECUTE, body)
        try:
            return child.order(Kind.EXECUTE, body, (descriptor,))
        finally:
            os.close(descriptor)

    def _answers(self, frame: Frame) -> list[BackendAnswer]:
        (place,), replies, payload = messages.unpack_replies(frame.body, 1)
        if frame.descriptors:
            self._outputs = shared_memory.adopt(frame.descriptors[0])
        if place == _IN_ARENA and self._outputs is not None:
            payload = memoryview(self._outputs.memory)
        return [_answer(reply, payload) for reply in replies]

    def _initialized(self) -> Child:
        child = self._start(self._event)
        try:
            frame = child.order(Kind.INITIALIZE, self._order)
        except ProcessGoneError as error:
            status = child.kill()
            text = f"the process of '{self._name}' ended while it started: {status}"
            raise BackendError(text) from error
        if frame.kind == Kind.FAILED:
            child.kill()
            raise BackendError(frame.body.decode(errors="replace"))
        return child

    def _healthy(self) -> Child:
        """Return the process, waiting for it if it is being started again.

        Raises:
            BackendError: it does not start.
        """
        with self._lock:
            child = self._child
        if child is not None and not child.is_alive():
            self._lost(child)
        with self._lock:
            self._lock.wait_for(lambda: self._child or not self._is_restarting)
            if self._child is None:
                raise BackendError(self._unhealthy())
            return self._child

    def _lost(self, child: Child) -> None:
        """Have a process that has died started again."""
        status = child.kill()
        _log.error("a model's process has died", instance=self._name, status=status)
        with self._lock:
            self._inputs = self._outputs = None
            if self._child is child:
                self._child = None
                self._is_restarting = True
                threading.Thread(
                    target=self._restart, name=f"{self._name} restart", daemon=True
                ).start()

    def _restart(self) -> None:
        """Start the process until it stands; the first attempt is waited for."""
        backoff = Backoff()
        while True:
            try:
                child = self._initialized()
            except BackendError as error:
                _log.error(
                    "a model's process does not start",
                    instance=self._name,
                    reason=str(error),
                )
                child = None
            with self._lock:
                self._is_restarting = False
                self._lock.notify_all()
                if child is not None and not self._is_unloaded:
                    self._child = child
                    return
                if child is None:
                    delay_s = backoff.after_failure()
                    self._lock.wait_for(lambda: self._is_unloaded, delay_s)
                if self._is_unloaded:
                    break
        if child is not None:
            child.close()

    def _unhealthy(self) -> str:
        return (
            f"Failed to process the request(s) for model '{self._name}', message: Stub"
            f" process '{self._name}' is not healthy."
        )

    def _event(self, frame: Frame) -> None:
        if frame.kind == Kind.LOG:
            level = _LEVELS[min(frame.body[0], len(_LEVELS) - 1)]
            text = frame.body[1:].decode(errors="replace")
            getattr(_log, level)(text, instance=self._name)


def _answer(reply: ReplyMessage | None, payload: memoryview) -> BackendAnswer:
    if reply is None:
        return BackendFailure(13, "the model did not answer")
    if reply.code:
        return BackendFailure(reply.code, reply.text)
    return BackendReply(
        tuple(
            [
                ReplyTensor(
                    index,
                    DataType.from_config(datatype),
                    shape,
                    payload[offset : offset + size],
                )
                for index, datatype, offset, size, shape in reply.outputs
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
    }
    return json.dumps({key: value for key, value in found.items() if value})
