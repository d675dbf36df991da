"""The shell around sampling: traced requests on their way, and their traces to control.

With tracing off nothing here is on a request's way: each model's requests go straight
to its scheduler.
"""

import functools
import itertools
import time
import uuid
from collections.abc import Callable
from typing import Final, Protocol

from services.router.batch_response import replies_of, timing_of
from services.router.nested_traces import NestedTraces
from services.router.pending_request import Execution, PendingRequest, Taker
from services.router.request_trace import RequestTrace
from services.router.route_scheduler import RouteScheduler
from services.router.route_table import Route
from services.router.streamed_replies import DecoupledRequest
from services.router.trace_sampler import (
    TraceSampler,
    TraceScope,
    TraceSettings,
)
from services.router.trace_tree import TraceTree
from services.router.traced_request import (
    Arrival,
    TracedRequest,
    TracedStreamRequest,
)
from services.router.traced_takers import StepTaker, TracedTaker, trace_of

_PYTHON: Final = "python"


class TraceOutlet(Protocol):
    """Where traces go."""

    def sampled(self, session: int) -> None:
        """Say that a request is going to be traced."""
        ...

    def ended(self, scope: TraceScope, trace: RequestTrace) -> None:
        """Hand over a finished trace."""
        ...


class Tracer:
    """Decides which requests are traced, and watches those.

    Attributes:
        sampler: Counts them.
    """

    def __init__(
        self,
        outlet: TraceOutlet,
        arrival_of: Callable[[PendingRequest], Arrival],
        now_ns: Callable[[], int] = time.monotonic_ns,
        endpoint: str = "",
    ) -> None:
        """Begin with tracing off.

        Args:
            outlet: Gets the traces.
            arrival_of: Tells how a request came in.
            now_ns: The monotonic clock.
            endpoint: Where workers reach this router.
        """
        self._nested = NestedTraces(uuid.uuid4().hex, endpoint)
        self._outlet = outlet
        self._arrival_of = arrival_of
        self._now_ns = now_ns
        self.sampler = TraceSampler()
        self._under_way = 0

    @property
    def is_on(self) -> bool:
        """Whether any request could be traced."""
        return self.sampler.is_on

    def follow(self, settings: TraceSettings) -> None:
        """Sample by ``settings``; ``taker_for`` may have other answers now."""
        self.sampler.follow(settings)

    def taker_for(self, scheduler: RouteScheduler, taker: Taker) -> Taker:
        """Return what takes the requests for ``scheduler``: ``taker`` if it can."""
        if not self.sampler.is_on_for(scheduler.route.model):
            return taker
        counter = self.sampler.counter_of(scheduler.route.model)
        return TracedTaker(
            taker,
            functools.partial(self.stand_in, scheduler),
            None if self.sampler.follows_callers else counter,
        )

    def stand_in(
        self,
        scheduler: RouteScheduler,
        request: PendingRequest,
        on_end: Callable[[PendingRequest], object],
    ) -> TracedRequest | None:
        """Count a request; return what stands for it if it is traced.

        Args:
            scheduler: Who takes it.
            request: The client's, just admitted.
            on_end: Called with ``request`` when its trace is finished.
        """
        sampler, route = self.sampler, scheduler.route
        arrival = None
        if sampler.follows_callers:
            arrival = self._arrival_of(request)
        scope = sampler.sample(route.model, arrival.traceparent if arrival else "")
        if scope is None:
            return None

        trace = RequestTrace(
            model=route.model,
            version=route.version,
            keeps_tensors=scope.tensors,
            tree=TraceTree(lambda: self._complete(scope, trace)),
        )
        self._under_way += 1
        self._outlet.sampled(scope.session)
        came = arrival or self._arrival_of(request)
        return self._watch(request, route, trace, came, on_end)

    def _watch(
        self,
        request: PendingRequest,
        route: Route,
        trace: RequestTrace,
        came: Arrival,
        on_end: Callable[[PendingRequest], object],
    ) -> TracedRequest:
        """Return what stands for a request that is traced from now on."""

        def ended(trace: RequestTrace) -> None:
            on_end(request)
            trace.tree.ended()

        trace.tree.began()
        many = route.config.decoupled and isinstance(request, DecoupledRequest)
        traced = (
            TracedStreamRequest(request, trace, came, ended, self._now_ns)
            if many and isinstance(request, DecoupledRequest)
            else TracedRequest(request, trace, came, ended, self._now_ns)
        )
        if _asks_others(route):
            traced.body += self._nested.open(trace)
        return traced

    def _complete(self, scope: TraceScope, trace: RequestTrace) -> None:
        """Hand over a trace whose last part has ended."""
        self._under_way -= 1
        self._nested.close(trace.tree.keys)
        self._outlet.ended(scope, trace)

    def nested_taker(
        self, asked_by: str, scheduler: RouteScheduler, taker: Taker
    ) -> Taker:
        """Return what takes the next request for ``scheduler``, which a model sent.

        Args:
            asked_by: What came with it: the trace that it is to be part of.
            scheduler: Of its route.
            taker: Takes it if there is no such trace (any more): untraced.
        """
        parent = self._nested.find(asked_by)
        if parent is None:
            return taker
        route = scheduler.route

        def stand_in(
            request: PendingRequest, on_end: Callable[[PendingRequest], object]
        ) -> TracedRequest:
            trace = RequestTrace(
                model=route.model,
                version=route.version,
                keeps_tensors=parent.keeps_tensors,
                tree=parent.tree,
            )
            parent.nested.append(trace)
            return self._watch(request, route, trace, Arrival(), on_end)

        return TracedTaker(taker, stand_in)

    def step_taker(self, scheduler: RouteScheduler, taker: Taker) -> Taker:
        """Return what takes the steps of ensembles for ``scheduler``."""
        if not (self.sampler.is_on and _asks_others(scheduler.route)):
            return taker
        return StepTaker(taker, self._nested)

    def executed(self, execution: Execution, message: bytes) -> None:
        """Note an execution in the traces of its requests, if any has one."""
        if not self._under_way:
            return
        for index, request in enumerate(execution.batch):
            trace = trace_of(request)
            if trace is None:
                continue
            timing, start = timing_of(message)
            trace.executed(execution.dispatched_ns, timing, self._now_ns())
            if trace.is_step and trace.keeps_tensors:
                trace.request = request.body
                trace.response = _response(message, start, index)


def _response(message: bytes, start: int, index: int) -> bytes:
    """Return one response of a BatchResponse; nothing if it is an error."""
    replies = replies_of(message, start)
    return next(itertools.islice(replies, index, None), (None, None))[0] or b""


def _asks_others(route: Route) -> bool:
    """Tell whether the model of ``route`` may send requests itself."""
    return route.config.backend == _PYTHON
