"""Questions to workers whether their instances are ready, and who has yet to answer."""

import asyncio
import itertools

from services.control.commands import CheckReadiness, ReadinessChecked


class ReadinessQuestions:
    """The open questions, by number."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: dict[int, tuple[str, asyncio.Future[bool]]] = {}
        self._numbers = itertools.count(1)

    def ask(
        self, worker_id: str, generation: int
    ) -> tuple[CheckReadiness, asyncio.Future[bool]]:
        """Return the order for the worker, and whether its instances are ready."""
        number = next(self._numbers)
        answer: asyncio.Future[bool] = asyncio.Future()
        self._open[number] = (worker_id, answer)
        answer.add_done_callback(lambda _: self._open.pop(number, None))
        return CheckReadiness(number=number, generation=generation), answer

    def take(self, answer: ReadinessChecked) -> None:
        """Give a worker's answer to whoever asked; nobody may be waiting."""
        _, future = self._open.get(answer.number, ("", None))
        if future is not None and not future.done():
            future.set_result(answer.is_ready)

    def drop(self, worker_id: str) -> None:
        """Have no say of a worker that left: what it served is served elsewhere."""
        for asked, future in list(self._open.values()):
            if asked == worker_id and not future.done():
                future.set_result(True)
