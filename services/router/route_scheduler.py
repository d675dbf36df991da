"""What the doors and the inference core know of whoever takes a route's requests."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from services.core.errors import ServingError
from services.router.pending_request import Execution, Instance, PendingRequest
from services.router.route_table import Route
from services.router.statistics import ModelStatistics


class RouteScheduler(Protocol):
    """Takes the admitted requests of one generation: batches them, or runs a graph.

    All on the reactor's thread.
    """

    statistics: ModelStatistics

    @property
    def route(self) -> Route:
        """Whose requests it takes."""
        ...

    @property
    def has_instance(self) -> bool:
        """Whether a request would be executed now."""
        ...

    @property
    def waiting(self) -> int:
        """Requests in its queue."""
        ...

    @property
    def is_quiet(self) -> bool:
        """Whether everyone has been answered."""
        ...

    def enqueue(self, request: PendingRequest) -> None:
        """Take an admitted request."""
        ...

    def time(self, request: PendingRequest) -> None:
        """Have the times of ``request`` added to its response."""
        ...

    def forget(self, request: PendingRequest) -> None:
        """Drop a request whose client has left."""
        ...

    def streaming(self, change: int) -> None:
        """Hear that more (or fewer) requests are under way that it does not see.

        They wait for streamed replies, or are looked up in a cache.
        """
        ...

    def when_quiet(self, callback: Callable[[], None]) -> None:
        """Call back, once, as soon as everyone here has been answered."""
        ...

    def refuse_all(self, error: ServingError) -> None:
        """Answer everyone who waits with ``error``."""
        ...

    def close(self) -> None:
        """Refuse everyone who waits and part from the instances."""
        ...


@runtime_checkable
class StateTaker(Protocol):
    """One whose instances send the states of its sequences along."""

    def take_states(self, instance: Instance, message: bytes) -> None:
        """Take the states that an execution has left behind, before its answers."""
        ...


class InstanceScheduler(RouteScheduler, Protocol):
    """One whose requests are executed by instances that dial in."""

    def attach(self, instance: Instance) -> None:
        """Take an instance into service."""
        ...

    def detach(
        self,
        instance: Instance,
        unanswered: tuple[Execution, ...],
        *,
        were_begun: bool = True,
    ) -> None:
        """Let an instance go, and decide about what it had not answered.

        Args:
            instance: That leaves, or was lost.
            unanswered: What was sent to it.
            were_begun: Whether it may have begun them; not if it left in order.
        """
        ...

    def completed(
        self, instance: Instance, execution: Execution, message: bytes
    ) -> None:
        """Take the answer to an execution."""
        ...
