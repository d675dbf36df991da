"""What the Prometheus page tells of the stack itself. Pure.

Source: the name that begins with ``nv_`` is Triton's; Nereid has no pinned memory.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from services.control.prometheus import Family, Labels, gauge
from services.control.prometheus import counter as counter_family
from services.control.route_table import VersionRoute
from services.control.statistics_totals import CacheState, Counted
from services.core.lifecycle import ModelState
from services.core.statistics_fields import WORKER_LOSSES, WORKER_RESTARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of the stack.

    Attributes:
        routes: All versions.
        worker_count: Attached workers.
        counted: Of the whole stack.
        router_count: Attached routers.
        loop_lags_s: How late each router's loop was at worst, lately.
        cache: The routers' response caches together; None without any.
    """

    routes: tuple[VersionRoute, ...]
    worker_count: int
    router_count: int
    counted: Counted = field(default_factory=Counted)
    loop_lags_s: Mapping[str, float] = field(default_factory=dict)
    cache: CacheState | None = None


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
        ({}, measured.counted[WORKER_LOSSES]),
    )
    yield counter_family(
        "nereid_worker_restarts_total",
        "Number of workers that came back as another process, unasked",
        ({}, measured.counted[WORKER_RESTARTS]),
    )
    yield gauge(
        "nereid_routers", "Number of attached routers", ({}, measured.router_count)
    )
    yield _loop_lags(*(({"router": r}, s) for r, s in measured.loop_lags_s.items()))
    for what in ("total", "used"):
        yield gauge(
            f"nv_pinned_memory_pool_{what}_bytes",
            f"Pinned memory pool {what} memory size, in bytes",
            ({}, 0),
        )
    if measured.cache is not None:
        yield from _cache_families(measured.cache)


def families_of_router(loop_lag_s: float, cache: CacheState | None) -> Iterator[Family]:
    """Yield what the page of one router tells of it."""
    yield _loop_lags(({}, loop_lag_s))
    if cache is not None:
        yield from _cache_families(cache)


def _loop_lags(*samples: tuple[Labels, float]) -> Family:
    return gauge(
        "nereid_router_loop_lag_seconds",
        "The latest that a router was for its own timer since its last report",
        *samples,
    )


def _cache_families(cache: CacheState) -> Iterator[Family]:
    share = cache.size_bytes / cache.capacity_bytes if cache.capacity_bytes else 0.0
    for name, text, value in (
        ("util", "Cache utilization [0.0 - 1.0]", share),
        ("num_entries", "Number of responses stored in response cache", cache.entries),
        ("num_hits", "Number of cache hits in response cache", cache.hits),
        ("num_misses", "Number of cache misses in response cache", cache.misses),
        (
            "num_lookups",
            "Number of cache lookups in response cache",
            cache.hits + cache.misses,
        ),
        (
            "num_evictions",
            "Number of cache evictions in response cache",
            cache.evictions,
        ),
        (
            "lookup_duration",
            "Total cache lookup duration (hit and miss), in microseconds",
            cache.lookup_ns // 1000,
        ),
        (
            "insertion_duration",
            "Total cache insertion duration, in microseconds",
            cache.insertion_ns // 1000,
        ),
    ):
        yield gauge(f"nv_cache_{name}", text, ({}, value))
