"""Who wants and uses which models, over all routers. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """What one router's clients do with a model that is loaded.

    Attributes:
        model: Its name.
        is_in_use: Whether it has requests now.
        idle_ns: How long ago the last one came.
    """

    model: str
    is_in_use: bool
    idle_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterDemand:
    """What one router's clients do with models that are loaded on demand.

    Attributes:
        wanted: Models that are not loaded, and that requests wait for.
        uses: Of models that are loaded.
        waits: By model, how many requests have ever waited, and how long in all; ns.
    """

    wanted: frozenset[str] = frozenset()
    uses: tuple[ModelUse, ...] = ()
    waits: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class ModelDemand:
    """What all routers said last, and since when models are wanted."""

    def __init__(self) -> None:
        """Begin without any router."""
        self._routers: dict[str, RouterDemand] = {}
        self._since_ns: dict[str, int] = {}
        self._last_used_ns: dict[str, int] = {}
        # Of routers that are gone.
        self._past_waits: Counter[tuple[str, str]] = Counter()

    def take(self, router_id: str, demand: RouterDemand, now_ns: int) -> None:
        """Take in what a router says; it replaces what it said before."""
        self._routers[router_id] = demand
        for use in demand.uses:
            used_ns = now_ns - use.idle_ns
            self.note_use(use.model, used_ns)
        self._look(now_ns)

    def forget(self, router_id: str, now_ns: int) -> None:
        """Take note that a router is gone, and its requests with it."""
        gone = self._routers.pop(router_id, RouterDemand())
        for model, (count, ns) in gone.waits.items():
            self._past_waits[model, "count"] += count
            self._past_waits[model, "ns"] += ns
        self._look(now_ns)

    def withdraw(self, model: str) -> tuple[str, ...]:
        """Want a model no more; return the routers that were waiting for it."""
        asked = tuple(r for r, each in self._routers.items() if model in each.wanted)
        for router_id in asked:
            demand = self._routers[router_id]
            self._routers[router_id] = replace(demand, wanted=demand.wanted - {model})
        self._since_ns.pop(model, None)
        return asked

    def note_use(self, model: str, used_ns: int) -> None:
        """Note that a model was used at ``used_ns``."""
        self._last_used_ns[model] = max(used_ns, self._last_used_ns.get(model, used_ns))

    def wanted(self) -> Mapping[str, int]:
        """Return since when each model is wanted; monotonic, ns."""
        return self._since_ns

    def is_in_use(self, model: str) -> bool:
        """Whether any router has requests for a model that is loaded."""
        return any(
            use.is_in_use and use.model == model
            for demand in self._routers.values()
            for use in demand.uses
        )

    def last_used_ns(self, model: str) -> int:
        """Return when a model was used last; 0 if it never was."""
        return self._last_used_ns.get(model, 0)

    def waits(self) -> Mapping[str, tuple[int, int]]:
        """Return by model how many requests have waited, and how long in all; ns."""
        total = Counter(self._past_waits)
        for demand in self._routers.values():
            for model, (count, ns) in demand.waits.items():
                total[model, "count"] += count
                total[model, "ns"] += ns
        models = sorted({model for model, _ in total})
        return {each: (total[each, "count"], total[each, "ns"]) for each in models}

    def _look(self, now_ns: int) -> None:
        wanted = {m for demand in self._routers.values() for m in demand.wanted}
        self._since_ns = {m: self._since_ns.get(m, now_ns) for m in sorted(wanted)}
