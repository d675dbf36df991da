"""Answers in the order of arrival, whatever the order of completion. Pure.

Source: ``preserve_ordering`` of Triton's dynamic batcher.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from services.router.pending_request import PendingRequest
from services.router.stand_in import StandIn


class OrderedRequest(StandIn):
    """Stands for a request and keeps its outcome until those before it have one."""

    __slots__ = (
        "_order",
        "outcome",
    )

    def __init__(self, request: PendingRequest, order: "InOrder") -> None:
        """Stand for ``request`` in ``order``."""
        super().__init__(request)
        self._order = order
        self.outcome: Callable[[], None] | None = None

    @property
    def open(self) -> bool:
        """Whether there is no outcome yet."""
        return self.outcome is None

    def answer(self, message: bytes) -> None:
        """Give the client ``message`` when it is its turn."""
        self._settle(partial(self.request.answer, message))

    def fail(self, code: int, details: str) -> None:
        """Give the client an error when it is its turn."""
        self._settle(partial(self.request.fail, code, details))

    def leave(self) -> bool:
        """Give up the turn: the client has left. False if its answer was there."""
        had_none = self.open
        self.outcome = _nothing
        self._order.settled()
        return had_none

    def _settle(self, outcome: Callable[[], None]) -> None:
        if self.open:
            self.outcome = outcome
            self._order.settled()


def _nothing() -> None:
    """Tell nobody: the client has left."""


class InOrder:
    """The requests of one model version that have not got their answer."""

    __slots__ = ("_by_request", "_line")

    def __init__(self) -> None:
        """Start empty."""
        self._line: deque[OrderedRequest] = deque()
        self._by_request: dict[PendingRequest, OrderedRequest] = {}

    def join(self, request: PendingRequest) -> OrderedRequest:
        """Give ``request`` the next turn; return what stands for it."""
        ordered = OrderedRequest(request, self)
        self._line.append(ordered)
        self._by_request[request] = ordered
        return ordered

    def standing_for(self, request: PendingRequest) -> OrderedRequest | None:
        """Return what stands for ``request``; None once its client has its answer."""
        return self._by_request.get(request)

    def settled(self) -> None:
        """Hand out every outcome that nobody is before any more."""
        line = self._line
        while line and (outcome := line[0].outcome) is not None:
            del self._by_request[line.popleft().request]
            outcome()
