"""What a scheduler knows of a request, of a batch and of an instance."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Protocol

from services.core.errors import ServingError
from services.core.status import status_of
from services.router.batch_response import Reply


class PendingRequest(Protocol):
    """An admitted request, whatever door it came through.

    ``priority`` and ``timeout_ns`` are what the client asked for; 0: nothing.
    """

    body: bytes
    rows: int
    shape_key: Hashable
    enqueued_ns: int
    priority: int
    timeout_ns: int
    attempts: int

    @property
    def open(self) -> bool:
        """Whether the client still waits."""
        ...

    def answer(self, message: bytes) -> None:
        """Give the client a serialized ModelInferResponse."""
        ...

    def fail(self, code: int, details: str) -> None:
        """Give the client an error."""
        ...


class Taker(Protocol):
    """Who takes the admitted requests of one generation."""

    def enqueue(self, request: PendingRequest) -> None:
        """Take an admitted request."""
        ...

    def time(self, request: PendingRequest) -> None:
        """Have the times of ``request``, enqueued next, added to its response."""
        ...

    def forget(self, request: PendingRequest) -> None:
        """Drop a request whose client has left."""
        ...


@dataclass(frozen=True, slots=True)
class Execution:
    """A batch on its way to an instance, and when it left the queue.

    ``is_isolated``: it is the only suspect on its worker.
    """

    batch: tuple[PendingRequest, ...]
    dispatched_ns: int
    is_isolated: bool = False

    @property
    def rows(self) -> int:
        """Of all its requests."""
        return sum(request.rows for request in self.batch)

    def durations(
        self, replies: Iterator[Reply], now_ns: int
    ) -> Iterator[tuple[int, int]]:
        """Yield how long each request that succeeded waited, and took in all; ns."""
        for request, (response, _) in zip(self.batch, replies, strict=True):
            if response is not None:
                began_ns = request.enqueued_ns
                yield self.dispatched_ns - began_ns, now_ns - began_ns


class Instance(Protocol):
    """A model instance that takes one batch at a time."""

    @property
    def worker(self) -> str:
        """Whose it is."""
        ...

    def execute(self, execution: Execution) -> None:
        """Begin an execution; ``Scheduler.completed`` tells of its end."""
        ...

    def tell(self, notice: bytes) -> None:
        """Send a serialized BatchRequest that is no batch."""
        ...

    def close(self) -> None:
        """Part from the instance: it serves nobody any more."""
        ...


def refuse(request: PendingRequest, error: ServingError) -> None:
    """Answer ``request`` with ``error``."""
    code, details = status_of(error)
    request.fail(code.value[0], details)
