"""What a link needs of a stream to a router."""

from collections.abc import Callable
from typing import Protocol, TypeAlias


class Stream(Protocol):
    """A stream to one router: batches come, answers go.

    ``services.core.completion_queue.ClientStream`` is one.
    """

    status: tuple[int, str] | None

    def receive(self) -> bytes | None:
        """Wait for the next batch; None when the stream has ended."""
        ...

    def send(self, message: bytes, then: Callable[[], None] | None = None) -> None:
        """Send an answer, from any thread; never blocks.

        ``then`` is called by the thread that receives when it is on its way.
        """
        ...

    def finish(self) -> None:
        """Say that nothing more will be sent; from any thread."""
        ...

    def cancel(self) -> None:
        """End the stream at once; from any thread."""
        ...

    def close(self) -> None:
        """Release the connection of a stream that has ended."""
        ...


OpenStream: TypeAlias = Callable[[str], Stream]
"""Dials a router, given its endpoint."""
