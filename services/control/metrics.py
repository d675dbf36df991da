"""What the Prometheus page tells of the stack itself. Pure.

Source: the name that begins with ``nv_`` is Triton's; Nereid has no pinned memory.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from services.control.prometheus import Family, gauge
from services.control.prometheus import counter as counter_family
from services.control.route_table import VersionRoute
from services.core.lifecycle import ModelState


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of the stack.

    Attributes:
        routes: All versions.
        worker_count: Attached workers.
        lost_workers: How many have been lost since control started.
        router_count: Attached routers.
        loop_lags_s: How late each router's loop was at worst, lately.
    """

    routes: tuple[VersionRoute, ...]
    worker_count: int
    lost_workers: int
    router_count: int
    loop_lags_s: Mapping[str, float] = field(default_factory=dict)


def families(measured: Measured) -> Iterator[Family]:
    """Yield the families of the stack."""
    states = Counter(route.state for route in measured.routes)
    yield gauge(
        "nereid_models",
        "Number of model versions in each state",
        *(({"state": state.value}, states[state]) for state in ModelState),
    )
    yield gauge(
        "nereid_workers", "Number of attached workers", ({}, measured.worker_count)
    )
    yield counter_family(
        "nereid_worker_losses_total",
        "Number of workers that were lost or replaced",
        ({}, measured.lost_workers),
    )
    yield gauge(
        "nereid_routers", "Number of attached routers", ({}, measured.router_count)
    )
    yield gauge(
        "nereid_router_loop_lag_seconds",
        "The latest that a router was for its own timer since its last report",
        *(({"router": each}, lag) for each, lag in measured.loop_lags_s.items()),
    )
    for what in ("total", "used"):
        yield gauge(
            f"nv_pinned_memory_pool_{what}_bytes",
            f"Pinned memory pool {what} memory size, in bytes",
            ({}, 0),
        )
