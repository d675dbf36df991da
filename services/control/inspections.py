"""Questions to workers about model files, and who has yet to answer."""

import asyncio
import itertools

from protos import control_pb2
from protos.model_config_pb2 import ModelConfig
from services.core.errors import BackendError


class InspectionFailedError(BackendError):
    """A worker could not read a model file; the message is the whole reason."""


class WorkerGoneError(Exception):
    """The worker left before it answered."""


class Inspections:
    """The open questions, by number."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: dict[int, tuple[str, asyncio.Future[ModelConfig]]] = {}
        self._numbers = itertools.count(1)

    def ask(
        self, worker_id: str, backend: str, directory: str, config: ModelConfig
    ) -> tuple[control_pb2.WorkerCommand, asyncio.Future[ModelConfig]]:
        """Return the command for the worker, and its answer to be.

        The answer raises InspectionFailedError if the file cannot be read, and
        WorkerGoneError if the worker leaves first.
        """
        number = next(self._numbers)
        answer: asyncio.Future[ModelConfig] = asyncio.Future()
        self._open[number] = (worker_id, answer)
        answer.add_done_callback(lambda _: self._open.pop(number, None))
        order = control_pb2.InspectModel(
            inspection=number,
            backend=backend,
            version_directory=directory,
            config=config,
        )
        return control_pb2.WorkerCommand(inspect=order), answer

    def take(self, answer: control_pb2.ModelInspected) -> None:
        """Give a worker's answer to whoever asked; nobody may be waiting."""
        _, future = self._open.get(answer.inspection, ("", None))
        if future is None or future.done():
            return
        if answer.error:
            future.set_exception(InspectionFailedError(answer.error))
        else:
            future.set_result(answer.found)

    def drop(self, worker_id: str) -> None:
        """Fail what a worker that left was asked."""
        for asked, future in list(self._open.values()):
            if asked == worker_id and not future.done():
                future.set_exception(WorkerGoneError())
