"""Models that are loaded when somebody asks for them, as a router sees them.

A request for one that is not there is kept until control has loaded it. Nothing here
is on the way of a request for a model that is there, in another control mode.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from services.core.completion_queue import Reactor
from services.core.errors import ServingError
from services.router.alarm import Alarm
from services.router.model_use import ModelUses
from services.router.pending_request import PendingRequest, Taker
from services.router.queue_limits import QueueLimits
from services.router.request_split import split_request
from services.router.route_scheduler import RouteScheduler
from services.router.route_table import RouteTable
from services.router.waiting_room import WaitingRoom

_TIMEOUT: Final = "timeout"


class KeptRequest(PendingRequest, Protocol):
    """A request that may have to wait; whoever has it is filled in here."""

    scheduler: Taker | None


class OnDemand:
    """Keeps requests until their models are loaded.

    Attributes:
        room: Where they wait.
        uses: Of models that are loaded.
        on_wanted: Called when a model is wanted that was not.
    """

    def __init__(self, reactor: Reactor, limits: QueueLimits) -> None:
        """Begin with nobody.

        Args:
            reactor: Keeps the timers.
            limits: Bound who waits.
        """
        self.room = WaitingRoom(limits.max_queue_bytes, time.monotonic_ns)
        self.uses = ModelUses()
        self.on_wanted: Callable[[], None] = _nobody_asks
        self._expiry = Alarm(reactor, self._expire)

    def keep_body(
        self,
        table: RouteTable,
        request: KeptRequest,
        body: bytes,
        go_on: Callable[[], None],
    ) -> bool:
        """As ``keep``, for a serialized ModelInferRequest."""
        if not table.loadable:
            return False
        try:
            head, _ = split_request(body)
        except ServingError:
            return False
        timeout = head.parameters.get(_TIMEOUT)
        timeout_us = max(timeout.int64_param, timeout.uint64_param) if timeout else 0
        return self.keep(
            table,
            request,
            head.model_name,
            size_bytes=len(body),
            go_on=go_on,
            timeout_ns=max(0, timeout_us) * 1000,
        )

    def keep(
        self,
        table: RouteTable,
        request: KeptRequest,
        model: str,
        *,
        size_bytes: int,
        go_on: Callable[[], None],
        timeout_ns: int = 0,
    ) -> bool:
        """Keep a request if its model has to be loaded first.

        Args:
            table: In force now.
            request: The client's, not admitted yet.
            model: What it asks for.
            size_bytes: What it keeps in memory.
            go_on: Called when the model is there.
            timeout_ns: How long it may wait; 0: as long as it takes.

        Returns:
            False if it need not wait.
        """
        if not table.must_load(model):
            return False
        is_new = model not in self.room.wanted
        request.scheduler = self.room
        self.room.enter(
            request, model, size_bytes=size_bytes, go_on=go_on, timeout_ns=timeout_ns
        )
        if timeout_ns:
            self._arm()
        if is_new:
            self.on_wanted()
        return True

    def apply(self, table: RouteTable, schedulers: Iterable[RouteScheduler]) -> None:
        """Let everybody go on whose model is there now."""
        self.uses.keep(schedulers)
        self.room.let_in(lambda model: not table.must_load(model))

    def _expire(self) -> None:
        self.room.expire()
        self._arm()

    def _arm(self) -> None:
        when_ns = self.room.next_expiry_ns
        if when_ns is not None:
            self._expiry.ring_at(when_ns)


def _nobody_asks() -> None:
    """Tell nobody: there is no control."""
