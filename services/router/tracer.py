"""The shell around sampling: traced requests on their way, and their traces to control.

With tracing off nothing here is on a request's way: each model's requests go straight
to its scheduler.
"""

import itertools
import time
from collections.abc import Callable
from typing import Protocol

from services.router.batch_response import replies_of, timing_of
from services.router.ensemble_calls import StepCall
from services.router.pending_request import Execution, PendingRequest, Taker
from services.router.route_scheduler import RouteScheduler
from services.router.streamed_replies import DecoupledRequest
from services.router.trace_sampler import (
    SampleCounter,
    TraceSampler,
    TraceScope,
    TraceSettings,
)
from services.router.traced_request import (
    Arrival,
    RequestTrace,
    TracedRequest,
    TracedStreamRequest,
)


class TraceOutlet(Protocol):
    """Where traces go."""

    def sampled(self, session: int) -> None:
        """Say that a request is going to be traced."""
        ...

    def ended(self, scope: TraceScope, trace: RequestTrace) -> None:
        """Hand over a finished trace."""
        ...


class Tracer:
    """Decides which requests are traced, and watches those."""

    def __init__(
        self,
        outlet: TraceOutlet,
        arrival_of: Callable[[PendingRequest], Arrival],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Begin with tracing off.

        Args:
            outlet: Gets the traces.
            arrival_of: Tells how a request came in.
            now_ns: The monotonic clock.
        """
        self._outlet = outlet
        self._arrival_of = arrival_of
        self._now_ns = now_ns
        self._sampler = TraceSampler()
        self._under_way = 0

    @property
    def is_on(self) -> bool:
        """Whether any request could be traced."""
        return self._sampler.is_on

    def follow(self, settings: TraceSettings) -> None:
        """Sample by ``settings``; ``taker_for`` may have other answers now."""
        self._sampler.follow(settings)

    def taker_for(self, scheduler: RouteScheduler, taker: Taker) -> Taker:
        """Return what takes the requests for ``scheduler``: ``taker`` if it can."""
        if not self._sampler.is_on_for(scheduler.route.model):
            return taker
        counter = self._sampler.counter_of(scheduler.route.model)
        return TracedTaker(
            scheduler, taker, self, None if self._sampler.follows_callers else counter
        )

    def stand_in(
        self,
        request: PendingRequest,
        scheduler: RouteScheduler,
        on_end: Callable[[PendingRequest], object],
    ) -> TracedRequest | None:
        """Count a request; return what stands for it if it is traced.

        Args:
            request: The client's, just admitted.
            scheduler: Who takes it.
            on_end: Called with ``request`` when its trace is finished.
        """
        sampler, route = self._sampler, scheduler.route
        arrival = None
        if sampler.follows_callers:
            arrival = self._arrival_of(request)
        scope = sampler.sample(route.model, arrival.traceparent if arrival else "")
        if scope is None:
            return None

        def ended(trace: RequestTrace) -> None:
            self._under_way -= 1
            on_end(request)
            self._outlet.ended(scope, trace)

        self._under_way += 1
        self._outlet.sampled(scope.session)
        trace = RequestTrace(
            model=route.model, version=route.version, keeps_tensors=scope.tensors
        )
        came = arrival or self._arrival_of(request)
        if route.config.decoupled and isinstance(request, DecoupledRequest):
            return TracedStreamRequest(request, trace, came, ended, self._now_ns)
        return TracedRequest(request, trace, came, ended, self._now_ns)

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


class TracedTaker:
    """Stands before a scheduler; some requests go in observed."""

    __slots__ = ("_counter", "_scheduler", "_taker", "_timed", "_traced", "_tracer")

    def __init__(
        self,
        scheduler: RouteScheduler,
        taker: Taker,
        tracer: Tracer,
        counter: SampleCounter | None,
    ) -> None:
        """Stand before ``taker``, which takes the requests for ``scheduler``.

        Args:
            scheduler: Of the route.
            taker: It, or who stands before it.
            tracer: Decides.
            counter: Passes most requests by; None if each has to be looked at.
        """
        self._counter = counter
        self._scheduler = scheduler
        self._taker = taker
        self._tracer = tracer
        self._timed: PendingRequest | None = None
        self._traced: dict[PendingRequest, TracedRequest] = {}

    def time(self, request: PendingRequest) -> None:
        """Have the times of ``request``, which is enqueued next, in its response."""
        self._timed = request

    def enqueue(self, request: PendingRequest) -> None:
        """Hand an admitted request on."""
        counter = self._counter
        if counter is not None and counter.until > 1 and self._timed is None:
            counter.until -= 1
            self._taker.enqueue(request)
            return
        is_timed, self._timed = self._timed is request, None
        traced = self._tracer.stand_in(request, self._scheduler, self._traced.pop)
        if traced is not None:
            self._traced[request] = traced
        if is_timed:
            self._taker.time(traced or request)
        self._taker.enqueue(traced or request)

    def forget(self, request: PendingRequest) -> None:
        """Drop a request whose client has left."""
        traced = self._traced.get(request)
        self._taker.forget(traced or request)
        if traced is not None:
            traced.leave()


def trace_of(request: object) -> RequestTrace | None:
    """Return the trace of whom ``request`` stands for; None if it has none.

    A step of an ensemble has a trace of its own in that of the ensemble's request.
    """
    if isinstance(request, TracedRequest):
        return request.trace
    inner = getattr(request, "request", None)
    trace = trace_of(inner) if inner is not None else None
    if trace is None or not isinstance(request, StepCall):
        return trace
    if request not in trace.steps:
        route = request.scheduler.route
        step = trace.steps[request] = RequestTrace(
            model=route.model,
            version=route.version,
            is_step=True,
            keeps_tensors=trace.keeps_tensors,
        )
        step.begin(at_ns=request.enqueued_ns, queued_ns=request.enqueued_ns)
    return trace.steps[request]
