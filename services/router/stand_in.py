"""A request that stands for another on its way through a scheduler. Pure."""

from collections.abc import Hashable

from services.router.pending_request import PendingRequest


class StandIn:
    """Has what a scheduler wants to know of ``request``, and attempts of its own.

    Subclasses say what becomes of the answer, and whether the client still waits if
    that is not what ``request`` says.
    """

    __slots__ = (
        "attempts",
        "body",
        "enqueued_ns",
        "priority",
        "request",
        "rows",
        "shape_key",
        "timeout_ns",
    )

    def __init__(self, request: PendingRequest) -> None:
        """Stand for ``request``, which has been admitted."""
        self.request = request
        self.body: bytes = request.body
        self.rows: int = request.rows
        self.shape_key: Hashable = request.shape_key
        self.enqueued_ns: int = request.enqueued_ns
        self.priority: int = request.priority
        self.timeout_ns: int = request.timeout_ns
        self.attempts = 0

    @property
    def open(self) -> bool:
        """Whether the client still waits."""
        return self.request.open
