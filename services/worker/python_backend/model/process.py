"""A model's process: it obeys the worker until the worker hangs up."""

import contextlib
import json
import os
import socket
import struct
import sys
import threading
from functools import partial
from typing import Any

from services.worker.python_backend.frames import Frame, FrameSocket, Kind
from services.worker.python_backend.model.calls import OtherModels
from services.worker.python_backend.model.errors import describe
from services.worker.python_backend.model.execution import ModelExecution, Names
from services.worker.python_backend.model.loading import completed_config, load_class
from services.worker.python_backend.model.log import Logger
from services.worker.python_backend.model.metrics import MetricsReporter, report_to
from services.worker.python_backend.model.readiness import Readiness
from services.worker.python_backend.model.request import set_caller

_PLACE = struct.Struct("<QI")
_OF_REQUESTS = {
    Kind.CANCEL: ModelExecution.cancel,
    Kind.PAUSE: ModelExecution.pause,
    Kind.RESUME: ModelExecution.resume,
}
# The answer to INITIALIZE of a model that has an is_ready.
_TELLS_READINESS = b"\x01"


def serve(work: int, events: int) -> None:
    """Serve one instance over two connected sockets; does not return.

    Args:
        work: Orders and their answers, in turns.
        events: What comes at any time.
    """
    process = ModelProcess(
        FrameSocket(socket.socket(fileno=work)),
        FrameSocket(socket.socket(fileno=events)),
    )
    try:
        process.run()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Threads that the model has left running do not delay the end.
        os._exit(0)


class ModelProcess:
    """One instance of a model."""

    def __init__(self, work: FrameSocket, events: FrameSocket) -> None:
        """Begin without a model."""
        self._work = work
        self._events = events
        self._model: Any = None
        self._execution: ModelExecution | None = None
        self._readiness: Readiness | None = None
        self._others = OtherModels(events)
        self._metrics = MetricsReporter(partial(events.send, Kind.METRICS))

    def run(self) -> None:
        """Obey until the worker hangs up, or has the model finalized."""
        Logger.write = self._log
        set_caller(self._others)
        report_to(self._metrics)
        threading.Thread(target=self._listen, name="events", daemon=True).start()
        while True:
            try:
                frame = self._work.receive()
            except EOFError:
                return
            try:
                kind, body, descriptors = self._obey(frame)
            except BaseException as error:  # noqa: BLE001 - SystemExit as well
                kind, body, descriptors = Kind.FAILED, describe(error).encode(), ()
            try:
                self._work.send(kind, body, descriptors)
            except OSError:
                return
            for descriptor in descriptors:
                os.close(descriptor)
            del body, frame

    def _obey(self, frame: Frame) -> tuple[Kind, bytes, tuple[int, ...]]:
        if frame.kind == Kind.EXECUTE and self._execution is not None:
            return self._execution.run(frame)
        if frame.kind == Kind.INITIALIZE:
            self._initialize(json.loads(frame.body))
            return Kind.DONE, _TELLS_READINESS if self._readiness else b"", ()
        if frame.kind == Kind.COMPLETE_CONFIG:
            order = json.loads(frame.body)
            config = completed_config(order["file"], order["config"])
            return Kind.DONE, config.encode(), ()
        if frame.kind == Kind.FINALIZE:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
            self._metrics.flush()
            return Kind.DONE, b"", ()
        raise ValueError(f"no order of kind {frame.kind} is known here")

    def _initialize(self, order: dict[str, Any]) -> None:
        model = load_class(order["file"])()
        if hasattr(model, "initialize"):
            model.initialize(order["args"])
        self._model = model
        if hasattr(model, "is_ready"):
            self._readiness = Readiness(model, self._tell_readiness)
        self._execution = ModelExecution(
            model,
            instance=order["instance"],
            names=Names(tuple(order["inputs"]), tuple(order["outputs"])),
            is_decoupled=order["is_decoupled"],
            events=self._events,
        )

    def _listen(self) -> None:
        while True:
            try:
                frame = self._events.receive()
            except EOFError:
                self._others.give_up()
                if self._execution is not None:
                    self._execution.give_up()
                return
            if frame.kind == Kind.ANSWER:
                self._others.answered(frame)
            elif frame.kind in _OF_REQUESTS and self._execution is not None:
                tell = _OF_REQUESTS[Kind(frame.kind)]
                tell(self._execution, *_PLACE.unpack(frame.body))
            elif frame.kind == Kind.CHECK_READINESS and self._readiness is not None:
                self._readiness.check()

    def _tell_readiness(self, is_ready: bool) -> None:  # noqa: FBT001 - a callback
        with contextlib.suppress(OSError):  # the worker has hung up
            self._events.send(Kind.READINESS, bytes([is_ready]))

    def _log(self, level: int, message: str) -> None:
        self._events.send(Kind.LOG, bytes([level]) + message.encode(errors="replace"))
