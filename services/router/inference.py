"""The inference core of a router: admission in front, a scheduler a generation.

Every door (gRPC, REST, streams) hands its requests in here.
"""

import functools
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from typing import Final, Protocol

import structlog

from services.core.completion_queue import (
    CloseWatch,
    NativeMetadata,
    Reactor,
    Watchable,
    metadata_values,
)
from services.core.errors import (
    InternalError,
    ModelNotReadyError,
    ServingError,
    StoppingError,
    UnsupportedError,
)
from services.router.admission import Admission
from services.router.dispatcher import Dispatcher
from services.router.ensemble_scheduler import (
    EnsembleScheduler,
    when_all_present_end,
)
from services.router.first_instances import FirstInstances
from services.router.in_turn import InTurn
from services.router.limited_scheduler import LimitedScheduler, is_limited
from services.router.on_demand import OnDemand
from services.router.pending_request import PendingRequest, Taker, refuse
from services.router.queue_limits import QueueLimits
from services.router.response_cache import ResponseCache
from services.router.retries import Isolation
from services.router.route_scheduler import InstanceScheduler, RouteScheduler
from services.router.route_table import Route, RouteTable
from services.router.scheduler import Scheduler
from services.router.sequence_scheduler import SequenceScheduler
from services.router.shadows import Shadows
from services.router.shared_memory_registry import SharedMemoryRegistry
from services.router.shared_responses import SharedResponses
from services.router.state_checkpoints import StateCheckpoints
from services.router.statistics_ledger import StatisticsLedger
from services.router.streamed_replies import takes_many
from services.router.takers import Takers
from services.router.tracer import Tracer
from services.router.traffic_splits import TrafficSplits

_log = structlog.get_logger(__name__)

_STOPPING_TEXT = "GRPC server is shutting down and has stopped accepting new requests."

_OUR_ERROR = "internal error"
# Under a stream of events that never pauses.
_MOST_ARRIVED: Final = 16

_DECOUPLED_TEXT = (
    "ModelInfer RPC doesn't support models with decoupled transaction policy"
)


class SubmittedRequest(PendingRequest, Protocol):
    """A request as its door hands it in; the scheduler is filled in here."""

    scheduler: Taker | None

    @property
    def metadata(self) -> NativeMetadata:
        """What came beside it: metadata of gRPC, headers of HTTP."""
        ...


class ArrivedRequest(SubmittedRequest, Watchable, Protocol):
    """A request whose ``body`` is what its client sent."""


class Inference:
    """Admits requests and hands each to the scheduler of its route."""

    __slots__ = (
        "_admission",
        "_applying",
        "_arrived",
        "_first_instances",
        "_isolation",
        "_limits",
        "_reactor",
        "_retired",
        "_schedulers",
        "_shared_memory",
        "_splits",
        "_takers",
        "_uploading",
        "cache",
        "checkpoints",
        "close_watch",
        "dispatcher",
        "on_demand",
        "statistics",
        "stopping",
        "take_arrived",
    )

    def __init__(
        self,
        reactor: Reactor,
        on_instances_changed: Callable[[], None],
        limits: QueueLimits | None = None,
        shared_memory: SharedMemoryRegistry | None = None,
        cache: ResponseCache | SharedResponses | None = None,
        *,
        pool: Executor | None = None,
        counts: bool = True,
    ) -> None:
        """Start with an empty route table.

        Args:
            reactor: Whose thread this is.
            on_instances_changed: Called when readiness may have changed.
            limits: Of the queues.
            shared_memory: The clients' regions.
            cache: For models that ask for it.
            pool: For what would hold up the loop.
            counts: Whether statistics are kept.
        """
        self.cache = cache
        self._limits = limits
        self._isolation = Isolation()
        self._reactor = reactor
        self.close_watch = CloseWatch(reactor)
        self.checkpoints = StateCheckpoints()
        self._shared_memory = shared_memory or SharedMemoryRegistry()
        self._admission = Admission(registry=self._shared_memory)
        self._splits = TrafficSplits(random.random)
        self.on_demand = OnDemand(reactor, limits or QueueLimits())
        shadows = Shadows(self._admission, reactor, pool)
        self._takers = Takers(cache, self.on_demand.uses, shadows)
        # Never changed but replaced: readiness is asked for by other threads.
        self._schedulers: Mapping[int, RouteScheduler] = {}
        self._retired: set[RouteScheduler] = set()
        self._applying = InTurn()
        self._first_instances = FirstInstances(self._is_missing)

        def changed() -> None:
            self._first_instances.look()
            on_instances_changed()

        self._arrived: list[ArrivedRequest] = []
        # One bound method for all, so that the reactor can tell it is known.
        self.take_arrived = self._take_arrived
        self.dispatcher = Dispatcher(changed, self.take_arrived)
        self.statistics = StatisticsLedger(is_counting=counts)
        self.stopping = False
        # Who may still be admitted although we stop.
        self._uploading: frozenset[SubmittedRequest] = frozenset()

    @property
    def table(self) -> RouteTable:
        """The routes in force; an immutable value, to be read from any thread."""
        return self._admission.table

    @property
    def is_quiet(self) -> bool:
        """Whether everyone who may be admitted has been, and was answered."""
        return not any(request.open for request in self._uploading) and all(
            scheduler.is_quiet for scheduler in self._everyone()
        )

    def arrive(self, request: ArrivedRequest) -> None:
        """Submit ``request``, whose body is what its client sent, with others soon.

        From then on its client's leaving is noticed.

        Hot. Between two events C-core and the kernel have pushed our code out of the
        processor's caches: requests that arrive together are therefore admitted
        together, when all of them are here or an instance has become free.
        """
        arrived = self._arrived
        arrived.append(request)
        if len(arrived) == 1:
            self._reactor.call_when_drained(self.take_arrived)
        elif len(arrived) >= _MOST_ARRIVED:
            self._take_arrived()

    def _take_arrived(self) -> None:
        """Submit all that have arrived."""
        arrived, self._arrived = self._arrived, []
        if arrived:
            self.close_watch.add(arrived)
        for request in arrived:
            if not request.open:
                continue  # its client has left already
            try:
                self.submit(request, request.body)
            except Exception:  # noqa: BLE001 - the others go on
                _log.exception("a request could not be submitted")
                refuse(request, InternalError(_OUR_ERROR))

    def submit(self, request: SubmittedRequest, body: bytes) -> None:
        """Admit a serialized ModelInferRequest, or refuse it with the reason."""
        if self.stopping and request not in self._uploading:
            refuse(request, StoppingError(_STOPPING_TEXT))
            return
        takers = self._takers.of
        try:
            if self._splits.are_any:
                headers = functools.partial(metadata_values, request.metadata)
                body, is_shadowed = self._splits.direct(body, headers)
                if is_shadowed:
                    takers = self._takers.of_copied
            verdict = self._admission.recognise(body)
            if verdict is None:
                verdict, body = self._admission.admit_anew(body)
        except ServingError as error:
            go_on = functools.partial(self.submit, request, body)
            if not self.on_demand.keep_body(self.table, request, body, go_on):
                refuse(request, error)
            return
        if verdict.route.config.decoupled and not takes_many(request):
            refuse(request, UnsupportedError(_DECOUPLED_TEXT))
            return
        request.body = body
        request.rows = verdict.rows
        request.shape_key = verdict.shape_key
        request.enqueued_ns = time.monotonic_ns()
        request.priority = verdict.priority
        request.timeout_ns = verdict.timeout_ns
        request.attempts = 0
        if verdict.regions:
            self._shared_memory.hold(verdict.regions, request)
        request.scheduler = scheduler = takers[verdict.route.generation]
        if verdict.is_special:
            request.scheduler = scheduler = self._takers.prepared(
                verdict, scheduler, request
            )
        scheduler.enqueue(request)

    def apply(self, table: RouteTable, applied: Callable[[], None]) -> None:
        """Route by ``table`` from now on.

        ``applied`` is called once no request is left in what the table no longer
        routes to: control may then unload it; and once all that is new has an
        instance: control may then say that it is ready. Tables are acknowledged in
        their order: who has applied one has applied all before it.
        """
        ready = {route.generation: route for route in table.routes() if route.is_ready}
        retiring = [s for g, s in self._schedulers.items() if g not in ready]
        new = [number for number in ready if number not in self._schedulers]
        for generation in new:
            self._begin(ready[generation])
        self._admission.apply(table)
        self._splits.apply(table)
        for scheduler in retiring:
            self._withdraw(scheduler)
        self._look_for_takers()
        self.on_demand.apply(table, self._schedulers.values())
        in_turn = self._applying.promise(applied)
        callable_ = functools.partial(self._first_instances.when_there, new, in_turn)
        if retiring:
            self._retire(retiring, callable_)
        else:
            callable_()

    def trace_by(self, tracer: Tracer) -> None:
        """Have ``tracer`` choose and watch requests; call again when it changed."""
        if self._takers.tracer is None:
            if not tracer.is_on:
                return
            self.dispatcher.watch(tracer.executed)
        self._takers.tracer = tracer
        self._look_for_takers()

    def _look_for_takers(self) -> None:
        self._takers.apply(self.table, self._schedulers)
        for scheduler in self._schedulers.values():
            if isinstance(scheduler, EnsembleScheduler):
                scheduler.bind(self._scheduler_for, self._takers.of_step)

    def _is_missing(self, generation: int) -> bool:
        scheduler = self._schedulers.get(generation)
        return scheduler is not None and not scheduler.has_instance

    def _withdraw(self, scheduler: RouteScheduler) -> None:
        """Send no more clients to ``scheduler``; refuse who would wait for ever."""
        withdrawn = scheduler.route.generation
        self._schedulers = {
            g: each for g, each in self._schedulers.items() if g != withdrawn
        }
        self._first_instances.look()
        self._retired.add(scheduler)
        if not scheduler.has_instance:
            message = (
                f"Request for unknown model: '{scheduler.route.model}' version "
                f"{scheduler.route.version} is not at ready state"
            )
            scheduler.refuse_all(ModelNotReadyError(message))

    def _retire(
        self, retiring: Collection[RouteScheduler], applied: Callable[[], None]
    ) -> None:
        """Let go of ``retiring`` once they have nothing left to do."""
        waiting = len(retiring)

        def retired(scheduler: RouteScheduler) -> None:
            nonlocal waiting
            waiting -= 1
            self._retired.discard(scheduler)
            self.dispatcher.unregister(scheduler)
            scheduler.close()
            if waiting == 0:
                applied()

        def retire() -> None:
            for scheduler in retiring:
                scheduler.when_quiet(functools.partial(retired, scheduler))

        # What ensembles have begun ends on the versions it began with.
        ensembles = [s for s in self._everyone() if isinstance(s, EnsembleScheduler)]
        when_all_present_end(ensembles, retire)

    def scheduler_of(self, route: Route) -> RouteScheduler | None:
        """Return who schedules ``route`` now."""
        return self._schedulers.get(route.generation)

    def is_model_ready(self, model: str, version: str) -> bool:
        """Whether an inference on that version would be executed now."""
        try:
            route = self.table.find(model, version)
        except ServingError:
            return False
        scheduler = self._schedulers.get(route.generation)
        return not self.stopping and scheduler is not None and scheduler.has_instance

    def waiting(self) -> dict[tuple[str, int], int]:
        """Return how many requests wait for execution, for versions with any."""
        counts: dict[tuple[str, int], int] = {}
        for scheduler in self._everyone():
            if scheduler.waiting:
                key = (scheduler.route.model, scheduler.route.version)
                counts[key] = counts.get(key, 0) + scheduler.waiting
        return counts

    def is_ready(self) -> bool:
        """Whether control calls us ready and every ready version has an instance."""
        return (
            not self.stopping
            and self.table.ready
            and all(each.has_instance for each in self._schedulers.values())
        )

    def stop(self, arriving: Iterable[SubmittedRequest] = ()) -> None:
        """Admit nobody from now on; refuse who waits for a model to be loaded.

        Args:
            arriving: Whose bodies are on the way: they came before the end, and are
                admitted all the same.
        """
        self._take_arrived()
        self.stopping = True
        self._uploading = frozenset(arriving)
        self.on_demand.room.refuse_all(StoppingError(_STOPPING_TEXT))

    def close(self) -> None:
        """Refuse who still waits and part from all workers."""
        for scheduler in self._everyone():
            scheduler.close()

    def _everyone(self) -> tuple[RouteScheduler, ...]:
        """Return who may have requests, ensembles before what may be in them."""
        everyone = (*self._schedulers.values(), *self._retired)
        return tuple(sorted(everyone, key=_is_plain))

    def _scheduler_for(self, model: str, version: str) -> RouteScheduler | None:
        try:
            route = self.table.find(model, version)
        except ServingError:
            return None
        return self._schedulers.get(route.generation)

    def _begin(self, route: Route) -> None:
        if route.config.ensemble is not None:
            counted = self.statistics.of_route(route)
            ensemble = EnsembleScheduler(route, self._admission, counted)
            self._schedulers = {**self._schedulers, route.generation: ensemble}
        else:
            scheduler = self._scheduler_with_instances(route)
            scheduler.statistics = self.statistics.of_route(route)
            self._schedulers = {**self._schedulers, route.generation: scheduler}
            self.dispatcher.register(scheduler)
        _log.info("route added", model=route.model, version=route.version)

    def _scheduler_with_instances(self, route: Route) -> InstanceScheduler:
        sequences = route.config.sequence_batching
        if sequences is not None:
            return SequenceScheduler(
                route,
                sequences,
                self._reactor,
                limits=self._limits,
                checkpoints=self.checkpoints,
            )
        kind = LimitedScheduler if is_limited(route) else Scheduler
        return kind(
            route, self._reactor, limits=self._limits, isolation=self._isolation
        )


def _is_plain(scheduler: RouteScheduler) -> bool:
    return not isinstance(scheduler, EnsembleScheduler)
