"""Who takes the requests of each route: its scheduler, or who stands before it."""

from collections.abc import Mapping

from services.router.cached_taker import CachedTaker
from services.router.learned_headers import Verdict
from services.router.model_use import ModelUses
from services.router.pending_request import PendingRequest, Taker
from services.router.response_cache import ResponseCache
from services.router.route_scheduler import RouteScheduler
from services.router.route_table import RouteTable
from services.router.shadows import Shadows
from services.router.shared_responses import SharedResponses
from services.router.shared_taker import SharedTaker
from services.router.traced_takers import TracedTaker
from services.router.tracer import Tracer


class Takers:
    """From the scheduler outwards: a cache, the watch on use, traces, copies.

    Attributes:
        of: Who takes the requests for a generation.
        of_copied: The same, for requests whose version may have a shadow.
        tracer: Chooses and watches requests; None: nobody is traced.
    """

    __slots__ = (
        "_cache",
        "_schedulers",
        "_shadows",
        "_table",
        "_uses",
        "of",
        "of_copied",
        "tracer",
    )

    def __init__(
        self,
        cache: ResponseCache | SharedResponses | None,
        uses: ModelUses,
        shadows: Shadows,
    ) -> None:
        """Begin with nobody.

        Args:
            cache: For models that ask for it.
            uses: Notes when a model that may be evicted was last wanted.
            shadows: Copy what goes to a version that has a shadow.
        """
        self.of: Mapping[int, Taker] = {}
        self.of_copied: Mapping[int, Taker] = {}
        self.tracer: Tracer | None = None
        self._cache = cache
        self._uses = uses
        self._shadows = shadows
        self._table = RouteTable()
        self._schedulers: Mapping[int, RouteScheduler] = {}

    def apply(
        self, table: RouteTable, schedulers: Mapping[int, RouteScheduler]
    ) -> None:
        """Stand before ``schedulers``, by generation, from now on."""
        self._table, self._schedulers = table, schedulers
        self.of = {
            generation: self._traced(scheduler, self._untraced(scheduler))
            for generation, scheduler in schedulers.items()
        }
        copied = self._shadows.before(table, schedulers, self._untraced)
        self.of_copied = {
            **self.of,
            **{
                scheduler.route.generation: self._traced(scheduler, taker)
                for scheduler, taker in copied
            },
        }

    def prepared(
        self, verdict: Verdict, taker: Taker, request: PendingRequest
    ) -> Taker:
        """Return what takes a request of which more is wanted than its answer."""
        if verdict.asked_by:
            taker = self._nested(verdict, taker)
        if verdict.wants_timing:
            taker.time(request)
        return taker

    def of_step(self, scheduler: RouteScheduler) -> Taker:
        """Return what takes the steps of ensembles for ``scheduler``."""
        taker = self._untraced(scheduler)
        return self.tracer.step_taker(scheduler, taker) if self.tracer else taker

    def _nested(self, verdict: Verdict, taker: Taker) -> Taker:
        """Return what takes a request that a model sent for the sake of another."""
        plain = taker.taker if isinstance(taker, TracedTaker) else taker
        scheduler = self._schedulers.get(verdict.route.generation)
        if self.tracer is None or scheduler is None:
            return plain
        return self.tracer.nested_taker(verdict.asked_by, scheduler, plain)

    def _traced(self, scheduler: RouteScheduler, taker: Taker) -> Taker:
        return self.tracer.taker_for(scheduler, taker) if self.tracer else taker

    def _untraced(self, scheduler: RouteScheduler) -> Taker:
        route, cache = scheduler.route, self._cache
        taker: Taker = scheduler
        if cache is not None and route.config.response_cache_enabled:
            if isinstance(cache, ResponseCache):
                taker = CachedTaker(scheduler, cache)
            else:
                taker = SharedTaker(scheduler, cache)
        if route.model in self._table.loadable:
            taker = self._uses.watch(scheduler, taker)
        return taker
