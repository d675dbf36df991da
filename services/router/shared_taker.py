"""Stands before a scheduler whose model shares its response cache with other routers.

Like CachedTaker, but a lookup takes a while: until it has ended the request is here,
and its scheduler does not call itself quiet.
"""

import functools
import time
from collections.abc import Callable

from services.core.statistics_fields import FailureReason
from services.core.wire_format import WireFormatError
from services.router.cached_taker import CachedCall, CacheFront
from services.router.pending_request import PendingRequest
from services.router.response_cache import pack, unpack
from services.router.route_scheduler import RouteScheduler
from services.router.shared_responses import SharedResponses


class SharedTaker(CacheFront):
    """Answers from the shared cache, or hands on and has kept what comes back."""

    __slots__ = ("_looked_up", "_responses", "_scheduler")

    def __init__(
        self,
        scheduler: RouteScheduler,
        responses: SharedResponses,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Stand before ``scheduler``."""
        super().__init__(scheduler.route, scheduler, scheduler.statistics, now_ns)
        self._scheduler = scheduler
        self._responses = responses
        self._looked_up: set[PendingRequest] = set()

    def forget(self, request: PendingRequest) -> None:
        """Drop a request whose client has left."""
        if request not in self._looked_up:
            super().forget(request)
            return
        self._looked_up.discard(request)
        waited_ns = self._now_ns() - request.enqueued_ns
        self._statistics.failed(waited_ns, FailureReason.CANCELED)
        self._scheduler.streaming(-1)

    def _look_up(self, request: PendingRequest, key: bytes, identity: bytes) -> None:
        self._looked_up.add(request)
        self._scheduler.streaming(1)
        began_ns = self._now_ns()
        done = functools.partial(self._found, request, key, identity, began_ns)
        self._responses.find(key, done)

    def _found(
        self,
        request: PendingRequest,
        key: bytes,
        identity: bytes,
        began_ns: int,
        packed: bytes | None,
    ) -> None:
        if request not in self._looked_up:
            return
        self._looked_up.discard(request)
        response = unpack(packed, identity) if packed is not None else None
        if response is None:
            self._miss(request, key, began_ns)
        else:
            self._hit(request, response, began_ns)
        self._scheduler.streaming(-1)

    def _insert(self, call: CachedCall, message: bytes) -> None:
        try:
            packed = pack(message)
        except (WireFormatError, IndexError):
            return
        self._responses.keep(call.key, packed)
