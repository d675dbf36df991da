"""Questions to workers about model files, and who has yet to answer."""

import asyncio
import itertools

from services.control.commands import FileInspected, InspectFile
from services.core.errors import BackendError


class InspectionFailedError(BackendError):
    """A worker could not read a model file; the message is the whole reason."""


class WorkerGoneError(Exception):
    """The worker left before it answered."""


class Inspections:
    """The open questions, by number."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: dict[int, tuple[str, asyncio.Future[bytes]]] = {}
        self._numbers = itertools.count(1)

    def ask(
        self, worker_id: str, backend: str, directory: str, config: bytes
    ) -> tuple[InspectFile, asyncio.Future[bytes]]:
        """Return the order for the worker, and the configuration it will find.

        The answer raises InspectionFailedError if the file cannot be read, and
        WorkerGoneError if the worker leaves first.
        """
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.Future()
        self._open[number] = (worker_id, answer)
        answer.add_done_callback(lambda _: self._open.pop(number, None))
        order = InspectFile(
            number=number, backend=backend, directory=directory, config=config
        )
        return order, answer

    def take(self, answer: FileInspected) -> None:
        """Give a worker's answer to whoever asked; nobody may be waiting."""
        _, future = self._open.get(answer.number, ("", None))
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
