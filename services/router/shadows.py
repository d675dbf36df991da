"""Which versions of which models have their requests copied to another one."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor

from services.core.completion_queue import Reactor
from services.router.admission import Admission
from services.router.pending_request import Taker
from services.router.route_scheduler import RouteScheduler
from services.router.route_table import RouteTable
from services.router.shadow_copies import CopyAllowance, ShadowCopies
from services.router.shadowed_taker import ShadowedTaker
from services.router.traffic_splits import shadow_of


class Shadows:
    """The shadow versions of a route table."""

    def __init__(
        self, admission: Admission, reactor: Reactor, pool: Executor | None
    ) -> None:
        """Begin without any.

        Args:
            admission: Of the router.
            reactor: Whose thread this is.
            pool: Compares large answers; None: they are compared at once.
        """
        self._admission = admission
        self._reactor = reactor
        self._pool = pool
        self._allowance = CopyAllowance()

    def before(
        self,
        table: RouteTable,
        schedulers: Mapping[int, RouteScheduler],
        taker_of: Callable[[RouteScheduler], Taker],
    ) -> Iterator[tuple[RouteScheduler, Taker]]:
        """Yield the schedulers of versions that have a shadow, and who copies.

        Args:
            table: In force now.
            schedulers: By generation.
            taker_of: Who stands before a scheduler otherwise.
        """
        for model, split in table.splits.items():
            shadow = shadow_of(split, table, model)
            routes = table.models.get(model, {})
            scheduler = schedulers.get(routes[shadow].generation) if shadow else None
            if scheduler is None:
                continue
            copies = self._copies(scheduler, split.shadow_tolerance)
            for version, route in routes.items():
                primary = schedulers.get(route.generation)
                if version != shadow and primary is not None:
                    yield primary, ShadowedTaker(taker_of(primary), copies.make)

    def _copies(self, scheduler: RouteScheduler, tolerance: float) -> ShadowCopies:
        return ShadowCopies(
            scheduler,
            tolerance,
            admission=self._admission,
            allowance=self._allowance,
            reactor=self._reactor,
            pool=self._pool,
            now_ns=time.monotonic_ns,
        )
