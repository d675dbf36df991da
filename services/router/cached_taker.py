"""Stands before a scheduler whose model has a response cache.

Models without one never meet it: their requests go straight to their scheduler.
"""

import contextlib
import time
from collections.abc import Callable

from services.core.wire_format import WireFormatError
from services.router.pending_request import PendingRequest, Taker
from services.router.response_cache import ResponseCache, request_key
from services.router.route_scheduler import RouteScheduler
from services.router.route_table import Route
from services.router.stand_in import StandIn
from services.router.statistics import ModelStatistics


class CachedCall(StandIn):
    """A request that the cache had no answer to, on its way to get one."""

    __slots__ = (
        "_owner",
        "key",
        "lookup_ns",
    )

    def __init__(
        self, owner: "CacheFront", request: PendingRequest, key: bytes, lookup_ns: int
    ) -> None:
        """Stand for ``request``.

        Args:
            owner: Keeps the answer.
            request: The client's, just admitted.
            key: What stands for it.
            lookup_ns: How long it was looked for.
        """
        super().__init__(request)
        self._owner = owner
        self.key = key
        self.lookup_ns = lookup_ns

    def answer(self, message: bytes) -> None:
        """Answer the client, then keep the answer."""
        self.request.answer(message)
        self._owner.answered(self, message)

    def fail(self, code: int, details: str) -> None:
        """Give the client the error; errors are not kept."""
        self.request.fail(code, details)
        self._owner.ended(self)


class CacheFront:
    """Answers from a cache, or hands on and keeps what comes back."""

    __slots__ = (
        "_calls",
        "_now_ns",
        "_route",
        "_statistics",
        "_taker",
        "_timed",
    )

    def __init__(
        self,
        route: Route,
        taker: Taker,
        statistics: ModelStatistics,
        now_ns: Callable[[], int],
    ) -> None:
        """Stand before ``taker``.

        Args:
            route: Whose requests it takes.
            taker: Who answers what the cache cannot.
            statistics: Of the version.
            now_ns: The monotonic clock.
        """
        self._route = route
        self._taker = taker
        self._statistics = statistics
        self._now_ns = now_ns
        self._calls: dict[PendingRequest, CachedCall] = {}
        self._timed: PendingRequest | None = None

    def time(self, request: PendingRequest) -> None:
        """Have the times of ``request``, which is enqueued next, in its response."""
        self._timed = request

    def enqueue(self, request: PendingRequest) -> None:
        """Answer an admitted request, or hand it on."""
        if self._timed is request:
            # Its answer is about this one execution.
            self._timed = None
            self._taker.time(request)
            self._taker.enqueue(request)
            return
        key, identity = request_key(self._route.generation, request.body)
        if key:
            self._look_up(request, key, identity)
        else:
            self._taker.enqueue(request)

    def forget(self, request: PendingRequest) -> None:
        """Drop a request whose client has left."""
        self._taker.forget(self._calls.pop(request, request))

    def answered(self, call: CachedCall, message: bytes) -> None:
        """Keep an answer."""
        self.ended(call)
        began_ns = self._now_ns()
        self._insert(call, message)
        insertion_ns = self._now_ns() - began_ns
        self._statistics.missed_cache(call.lookup_ns + insertion_ns)

    def ended(self, call: CachedCall) -> None:
        """Let go of a request."""
        self._calls.pop(call.request, None)

    def _look_up(self, request: PendingRequest, key: bytes, identity: bytes) -> None:
        """Find an answer, then call ``_hit`` or ``_miss``, now or later."""
        raise NotImplementedError

    def _insert(self, call: CachedCall, message: bytes) -> None:
        """Keep the answer to ``call``, if it can be kept."""
        raise NotImplementedError

    def _hit(self, request: PendingRequest, response: bytes, began_ns: int) -> None:
        now_ns = self._now_ns()
        self._statistics.answered_from_cache(
            lookup_ns=now_ns - began_ns,
            queue_ns=began_ns - request.enqueued_ns,
            success_ns=now_ns - request.enqueued_ns,
            at_ms=time.time_ns() // 1_000_000,
        )
        request.answer(response)

    def _miss(self, request: PendingRequest, key: bytes, began_ns: int) -> None:
        call = CachedCall(self, request, key, self._now_ns() - began_ns)
        self._calls[request] = call
        self._taker.enqueue(call)


class CachedTaker(CacheFront):
    """A front of the cache that all models of a router share."""

    __slots__ = ("_cache",)

    def __init__(
        self,
        scheduler: RouteScheduler,
        cache: ResponseCache,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Stand before ``scheduler``."""
        super().__init__(scheduler.route, scheduler, scheduler.statistics, now_ns)
        self._cache = cache

    def _look_up(self, request: PendingRequest, key: bytes, identity: bytes) -> None:
        began_ns = self._now_ns()
        response = self._cache.find(key, identity)
        self._cache.lookup_ns += self._now_ns() - began_ns
        if response is None:
            self._miss(request, key, began_ns)
        else:
            self._hit(request, response, began_ns)

    def _insert(self, call: CachedCall, message: bytes) -> None:
        began_ns = self._now_ns()
        with contextlib.suppress(WireFormatError, IndexError):
            self._cache.insert(call.key, message)
        self._cache.insertion_ns += self._now_ns() - began_ns
