"""Who stands before a scheduler and has some of its requests observed. Pure."""

from collections.abc import Callable
from typing import TypeAlias

from services.router.ensemble_calls import StepCall
from services.router.nested_traces import NestedTraces
from services.router.pending_request import PendingRequest, Taker
from services.router.request_trace import RequestTrace
from services.router.trace_sampler import SampleCounter
from services.router.traced_request import TracedRequest

StandInMaker: TypeAlias = Callable[
    [PendingRequest, Callable[[PendingRequest], object]], TracedRequest | None
]
"""Returns what stands for a request that is traced, None if it is not; what it is
given besides is called with the request when its trace has ended."""


class TracedTaker:
    """Stands before a scheduler; some requests go in observed."""

    __slots__ = ("_counter", "_stand_in", "_timed", "_traced", "taker")

    def __init__(
        self,
        taker: Taker,
        stand_in: StandInMaker,
        counter: SampleCounter | None = None,
    ) -> None:
        """Stand before ``taker``, which takes the requests.

        Args:
            taker: A scheduler, or who stands before it.
            stand_in: Decides.
            counter: Passes most requests by; None if each has to be looked at.
        """
        self._counter = counter
        self._stand_in = stand_in
        self.taker = taker
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
            self.taker.enqueue(request)
            return
        is_timed, self._timed = self._timed is request, None
        traced = self._stand_in(request, self._traced.pop)
        if traced is not None:
            self._traced[request] = traced
        if is_timed:
            self.taker.time(traced or request)
        self.taker.enqueue(traced or request)

    def forget(self, request: PendingRequest) -> None:
        """Drop a request whose client has left."""
        traced = self._traced.get(request)
        self.taker.forget(traced or request)
        if traced is not None:
            traced.leave()


class StepTaker:
    """Stands before a model that may ask others, for the steps of ensembles."""

    __slots__ = ("_nested", "_taker")

    def __init__(self, taker: Taker, nested: NestedTraces) -> None:
        """Stand before ``taker``; keep what is told in ``nested``."""
        self._taker = taker
        self._nested = nested

    def time(self, request: PendingRequest) -> None:
        """Have the times of ``request``, which is enqueued next, in its response."""
        self._taker.time(request)

    def enqueue(self, request: PendingRequest) -> None:
        """Tell the model of the trace that the step is part of, if it is."""
        trace = trace_of(request)
        if trace is not None:
            request.body += self._nested.open(trace)
        self._taker.enqueue(request)

    def forget(self, request: PendingRequest) -> None:
        """Drop a request whose client has left."""
        self._taker.forget(request)


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
            tree=trace.tree,
        )
        step.begin(at_ns=request.enqueued_ns, queued_ns=request.enqueued_ns)
    return trace.steps[request]
