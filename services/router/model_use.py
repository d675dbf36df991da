"""When models that are loaded on demand were used last."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from services.router.pending_request import PendingRequest, Taker
from services.router.route_scheduler import RouteScheduler


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What clients do with a model.

    Attributes:
        model: Its name.
        is_in_use: Whether it has requests now.
        last_used_ns: Monotonic; when the last one came.
    """

    model: str
    is_in_use: bool
    last_used_ns: int


@dataclass(slots=True)
class LastUse:
    """When the last request for a generation came: monotonic, 0 before the first."""

    ns: int = 0


class UsedTaker:
    """Stands before another taker and notes when a request comes."""

    __slots__ = ("_last", "_taker")

    def __init__(self, taker: Taker, last: LastUse) -> None:
        """Stand before ``taker``; keep ``last`` up to date."""
        self._taker = taker
        self._last = last

    def time(self, request: PendingRequest) -> None:
        """Have the times of ``request``, which is enqueued next, in its response."""
        self._taker.time(request)

    def enqueue(self, request: PendingRequest) -> None:
        """Hand an admitted request on."""
        self._last.ns = request.enqueued_ns
        self._taker.enqueue(request)

    def forget(self, request: PendingRequest) -> None:
        """Drop a request whose client has left."""
        self._taker.forget(request)


class ModelUses:
    """The use of every model of a router."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        """Begin with none."""
        self._last: dict[RouteScheduler, LastUse] = {}

    def watch(self, scheduler: RouteScheduler, taker: Taker) -> Taker:
        """Return what stands before ``taker``, which takes for ``scheduler``."""
        return UsedTaker(taker, self._last.setdefault(scheduler, LastUse()))

    def keep(self, schedulers: Iterable[RouteScheduler]) -> None:
        """Forget all others."""
        kept = set(schedulers)
        self._last = {each: last for each, last in self._last.items() if each in kept}

    def uses(self) -> Iterator[ModelUse]:
        """Yield the use of each model, by name."""
        by_model: dict[str, list[tuple[bool, int]]] = {}
        for scheduler, last in self._last.items():
            use = (not scheduler.is_quiet, last.ns)
            by_model.setdefault(scheduler.route.model, []).append(use)
        for model, uses in sorted(by_model.items()):
            is_in_use = any(each for each, _ in uses)
            yield ModelUse(model, is_in_use, max(last_ns for _, last_ns in uses))
