"""Stands before the scheduler of a version whose requests are copied to another.

Only requests that a split has directed meet it; all others go straight on.
"""

from collections.abc import Callable

from services.router.pending_request import PendingRequest, Taker
from services.router.stand_in import StandIn


class ShadowedCall(StandIn):
    """A request whose answer is kept to compare another with."""

    __slots__ = ("_owner",)

    def __init__(self, owner: "ShadowedTaker", request: PendingRequest) -> None:
        """Stand for ``request``, just admitted."""
        super().__init__(request)
        self._owner = owner

    def answer(self, message: bytes) -> None:
        """Answer the client, then have the request copied."""
        self.request.answer(message)
        self._owner.answered(self, message)

    def fail(self, code: int, details: str) -> None:
        """Give the client the error; what failed is not copied."""
        self.request.fail(code, details)
        self._owner.ended(self)


class ShadowedTaker:
    """Hands requests on, and what was answered to whoever copies it."""

    __slots__ = ("_calls", "_make_copy", "_taker", "_timed")

    def __init__(
        self, taker: Taker, make_copy: Callable[[PendingRequest, bytes], None]
    ) -> None:
        """Stand before ``taker``.

        Args:
            taker: Who answers.
            make_copy: Gets each request that was answered, and the answer.
        """
        self._taker = taker
        self._make_copy = make_copy
        self._calls: dict[PendingRequest, ShadowedCall] = {}
        self._timed: PendingRequest | None = None

    def time(self, request: PendingRequest) -> None:
        """Have the times of ``request``, which is enqueued next, in its response."""
        self._timed = request

    def enqueue(self, request: PendingRequest) -> None:
        """Hand an admitted request on."""
        call = self._calls[request] = ShadowedCall(self, request)
        is_timed, self._timed = self._timed is request, None
        if is_timed:
            self._taker.time(call)
        self._taker.enqueue(call)

    def forget(self, request: PendingRequest) -> None:
        """Drop a request whose client has left."""
        self._taker.forget(self._calls.pop(request, request))

    def answered(self, call: ShadowedCall, message: bytes) -> None:
        """Have a request copied."""
        self.ended(call)
        self._make_copy(call, message)

    def ended(self, call: ShadowedCall) -> None:
        """Let go of a request."""
        self._calls.pop(call.request, None)
