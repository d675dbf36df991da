"""How the requests of a model wait, by its configuration. Pure."""

from services.router.batcher import BatchPolicy
from services.router.pending_request import PendingRequest
from services.router.request_queue import RequestQueue, needs_policies
from services.router.route_table import Route


def policy_of(route: Route, hold_until: int = 0) -> BatchPolicy:
    """Return how requests for ``route`` are batched, by its configuration."""
    config = route.config
    batching = config.dynamic_batching
    if batching is None:
        return BatchPolicy(max_batch_size=max(config.max_batch_size, 1), max_requests=1)
    return BatchPolicy(
        max_batch_size=max(config.max_batch_size, 1),
        preferred_batch_sizes=batching.preferred_batch_sizes,
        max_queue_delay_ns=batching.max_queue_delay_ns,
        hold_until=hold_until,
    )


def queue_of(route: Route) -> RequestQueue[PendingRequest] | None:
    """Return an empty queue for ``route``; None if first in, first out will do."""
    batching = route.config.dynamic_batching
    if batching is None or not needs_policies(batching):
        return None
    return RequestQueue(batching)
