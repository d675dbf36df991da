"""Whether an admitted request may wait for an instance. Pure."""

from services.core.errors import (
    BackendError,
    ModelNotReadyError,
    OverloadedError,
    ServingError,
)
from services.router.batcher import Batcher
from services.router.pending_request import PendingRequest
from services.router.quarantine import Quarantine
from services.router.queue_limits import QueueLimits
from services.router.request_content import request_prefix
from services.router.route_table import Route


class Entrance:
    """Watches over the queue of one generation.

    Attributes:
        unserved_since_ns: When the last instance left; None while there is one.
    """

    __slots__ = ("_batcher", "_limits", "_quarantine", "_route", "unserved_since_ns")

    def __init__(
        self,
        route: Route,
        batcher: Batcher[PendingRequest],
        quarantine: Quarantine,
        limits: QueueLimits,
        now_ns: int,
    ) -> None:
        """Watch over ``batcher``, which nobody serves as yet."""
        self._route = route
        self._batcher = batcher
        self._quarantine = quarantine
        self._limits = limits
        self.unserved_since_ns: int | None = now_ns

    @property
    def closes_ns(self) -> int | None:
        """Until when requests wait for an instance; None while there is one."""
        since_ns = self.unserved_since_ns
        return (
            None if since_ns is None else since_ns + self._limits.no_worker_timeout_ns
        )

    def is_closed(self, now_ns: int) -> bool:
        """Tell whether requests have waited long enough for an instance."""
        closes_ns = self.closes_ns
        return closes_ns is not None and now_ns >= closes_ns

    def objection(self, request: PendingRequest, now_ns: int) -> ServingError | None:
        """Return why ``request`` may not wait; None if it may."""
        if self.is_closed(now_ns):
            return self.no_worker()
        if self._quarantine.holds(request.body, now_ns):
            return BackendError(
                f"{request_prefix(request.body)}the content of this request has "
                f"brought down workers of model '{self._route.model}'; it is refused "
                "for a while"
            )
        if not self._batcher.has_room(request):
            return OverloadedError(
                f"{request_prefix(request.body)}Exceeds maximum queue size"
            )
        if self._batcher.size_bytes >= self._limits.max_queue_bytes:
            return OverloadedError(
                f"{request_prefix(request.body)}Exceeds maximum queue size: "
                f"{self._batcher.size_bytes} bytes wait for model "
                f"'{self._route.model}'"
            )
        return None

    def no_worker(self) -> ModelNotReadyError:
        """Return what requests are told that nobody serves."""
        return ModelNotReadyError(
            f"no worker serves model '{self._route.model}' version "
            f"{self._route.version_text} now"
        )
