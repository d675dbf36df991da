"""What the Prometheus page tells of models that are loaded on demand. Pure."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from services.control.prometheus import Family, counter, gauge


class Demand(Protocol):
    """What was loaded, what had to go, and who waited."""

    @property
    def loads(self) -> Mapping[str, int]:
        """How often each model was loaded for somebody."""
        ...

    @property
    def evictions(self) -> Mapping[str, int]:
        """How often each had to go for another."""
        ...

    @property
    def budget_bytes(self) -> int:
        """The budget; 0: there is none."""
        ...

    @property
    def resident_bytes(self) -> int:
        """What models count for now."""
        ...

    def waits(self) -> Mapping[str, tuple[int, int]]:
        """Return by model how many requests have waited, and how long in all; ns."""
        ...


def families(demand: Demand) -> Iterator[Family]:
    """Yield the families of on-demand mode."""
    waits = demand.waits()
    yield counter(
        "nereid_model_demand_loads_total",
        "Number of times that a model was loaded because somebody asked for it",
        *(({"model": model}, n) for model, n in sorted(demand.loads.items())),
    )
    yield counter(
        "nereid_model_evictions_total",
        "Number of times that a model was unloaded to make room for others",
        *(({"model": model}, n) for model, n in sorted(demand.evictions.items())),
    )
    yield counter(
        "nereid_model_waits_total",
        "Number of requests that waited until their model was loaded",
        *(({"model": model}, count) for model, (count, _) in waits.items()),
    )
    yield counter(
        "nereid_model_wait_seconds_total",
        "How long requests waited until their model was loaded",
        *(({"model": model}, ns / 1e9) for model, (_, ns) in waits.items()),
    )
    yield gauge(
        "nereid_model_memory_budget_bytes",
        "What models may take together; 0 if there is no budget",
        ({}, demand.budget_bytes),
    )
    yield gauge(
        "nereid_model_memory_resident_bytes",
        "What models count for against the budget",
        ({}, demand.resident_bytes),
    )
