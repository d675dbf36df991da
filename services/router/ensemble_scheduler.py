"""The scheduler of an ensemble: it has no queue, only requests under way.

All on the reactor's thread.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

import grpc

from services.core.errors import (
    ModelNotReadyError,
    ServingError,
    StoppingError,
    UnsupportedError,
)
from services.core.statistics_fields import FailureReason
from services.core.status import status_of
from services.router.admission import Admission
from services.router.ensemble_calls import Member, StepCall
from services.router.ensemble_plan import EnsemblePlan, plan_of
from services.router.ensemble_run import EnsembleRun
from services.router.ensemble_strands import layers_of
from services.router.ensemble_streams import StreamedRun
from services.router.ensemble_wire import EnsembleRequest, read_request
from services.router.pending_request import PendingRequest, Taker, refuse
from services.router.route_scheduler import RouteScheduler
from services.router.route_table import Route
from services.router.statistics import ModelStatistics, failure_reason
from services.router.streamed_replies import takes_many

_MOST_PLANS: Final = 256
_DECOUPLED_TEXT: Final = (
    "ModelInfer RPC doesn't support models with decoupled transaction policy"
)
_UNAVAILABLE: Final[int] = grpc.StatusCode.UNAVAILABLE.value[0]
_CANCELLED: Final[int] = grpc.StatusCode.CANCELLED.value[0]
_REASONS: Final = {
    _UNAVAILABLE: FailureReason.REJECTED,
    _CANCELLED: FailureReason.CANCELED,
}

Find: TypeAlias = Callable[[str, str], RouteScheduler | None]
"""Who takes the requests for a model and a version ("": the newest), if anyone."""


class EnsembleScheduler:
    """Takes the requests of one generation of an ensemble; a ``RouteScheduler``."""

    __slots__ = (
        "_admission",
        "_decoupled",
        "_elsewhere",
        "_members",
        "_on_quiet",
        "_plan",
        "_plans",
        "_runs",
        "_watchers",
        "route",
        "statistics",
    )

    def __init__(
        self, route: Route, admission: Admission, statistics: ModelStatistics
    ) -> None:
        """Serve nobody before ``bind``.

        Args:
            route: One whose configuration has an ensemble.
            admission: Checks what the steps send.
            statistics: Of the ensemble itself.
        """
        self.route = route
        self.statistics = statistics
        self._admission = admission
        self._plan = plan_of(route.config)
        self._plans: dict[frozenset[str], EnsemblePlan] = {}
        self._members: Mapping[int, Member] = {}
        # Steps that are decoupled; None: not known since the last ``bind``.
        self._decoupled: frozenset[int] | None = None
        self._runs: dict[PendingRequest, EnsembleRun | StreamedRun] = {}
        # Requests that are on their way to it.
        self._elsewhere = 0
        self._on_quiet: Callable[[], None] | None = None
        self._watchers: list[
            tuple[set[EnsembleRun | StreamedRun], Callable[[], None]]
        ] = []

    @property
    def has_instance(self) -> bool:
        """Whether every member is there to execute its step."""
        return len(self._members) == len(self._plan.steps) and all(
            member.scheduler.has_instance for member in self._members.values()
        )

    @property
    def is_decoupled(self) -> bool:
        """Whether a request may have any number of responses."""
        return any(is_decoupled(each.scheduler) for each in self._members.values())

    @property
    def waiting(self) -> int:
        """0: whoever waits is in the queue of a member."""
        return 0

    @property
    def is_quiet(self) -> bool:
        """Whether no request is under way."""
        return not self._runs and not self._elsewhere

    def streaming(self, change: int) -> None:
        """Hear that more (or fewer) requests are under way before they come here."""
        self._elsewhere += change
        self._check_quiet()

    def bind(self, find: Find, taker_of: Callable[[RouteScheduler], Taker]) -> None:
        """Send the steps of requests that come from now on to whom ``find`` names."""
        found = {
            i: find(step.model, step.version) for i, step in self._plan.steps.items()
        }
        self._decoupled = None
        self._members = {
            i: Member(each, taker_of(each)) for i, each in found.items() if each
        }

    def enqueue(self, request: PendingRequest) -> None:
        """Run an admitted request."""
        if len(self._members) < len(self._plan.steps):
            message = f"a model of ensemble '{self.route.model}' is not ready"
            self._refuse(request, ModelNotReadyError(message))
            return
        wire = read_request(request.body)
        try:
            self._check_forms(wire)
            run = self._runs[request] = self._run_for(request, wire)
        except ServingError as error:
            self._refuse(request, error)
            return
        run.begin()

    def submit(self, call: StepCall, body: bytes) -> None:
        """Admit a step and hand it to its scheduler."""
        try:
            verdict, call.body = self._admission.admit_to(call.scheduler.route, body)
        except ServingError as error:
            refuse(call, error)
            return
        call.rows = verdict.rows
        call.shape_key = verdict.shape_key
        call.enqueued_ns = time.monotonic_ns()
        call.priority = verdict.priority
        call.timeout_ns = verdict.timeout_ns
        call.taker.enqueue(call)

    def time(self, request: PendingRequest) -> None:
        """Do nothing: the times of a graph do not fit into those of one execution."""

    def forget(self, request: PendingRequest) -> None:
        """Drop a request whose client has left, and its steps."""
        run = self._runs.get(request)
        if run is None:
            return
        run.drop()
        waited_ns = time.monotonic_ns() - request.enqueued_ns
        self.statistics.failed(waited_ns, FailureReason.CANCELED)
        self._ended(run)

    def succeeded(self, run: EnsembleRun, message: bytes) -> None:
        """Answer the client of ``run``."""
        request = run.request
        now_ns = time.monotonic_ns()
        request.answer(message)
        queue_ns, success_ns = (
            run.began_ns - request.enqueued_ns,
            now_ns - request.enqueued_ns,
        )
        timing = (0, now_ns - run.began_ns, 0)
        latencies = self.statistics.latencies
        if latencies is not None:
            self.statistics.took(latencies, [(queue_ns, success_ns)], timing)
        self.statistics.executed(
            batch_rows=request.rows,
            rows=request.rows,
            requests=1,
            queue_ns=queue_ns,
            success_ns=success_ns,
            timing=timing,
            at_ms=time.time_ns() // 1_000_000,
        )
        self._ended(run)

    def streamed(self, run: StreamedRun) -> None:
        """Hear that a client has had all its responses."""
        request = run.request
        now_ns = time.monotonic_ns()
        self.statistics.streamed(
            rows=request.rows,
            queue_ns=run.began_ns - request.enqueued_ns,
            success_ns=now_ns - request.enqueued_ns,
            at_ms=time.time_ns() // 1_000_000,
        )
        self.statistics.computed((0, now_ns - run.began_ns, 0))
        self._ended(run)

    def failed(self, run: EnsembleRun | StreamedRun, code: int, details: str) -> None:
        """Tell the client of ``run`` that it failed."""
        request = run.request
        request.fail(code, details)
        elapsed_ns = time.monotonic_ns() - request.enqueued_ns
        self.statistics.failed(elapsed_ns, _REASONS.get(code, FailureReason.BACKEND))
        self._ended(run)

    def when_quiet(self, callback: Callable[[], None]) -> None:
        """Call back, once, as soon as everyone here has been answered."""
        self._on_quiet = callback
        self._check_quiet()

    def when_present_end(self, callback: Callable[[], None]) -> None:
        """Call back, once, as soon as those are answered who are under way now."""
        present = set(self._runs.values())
        if present:
            self._watchers.append((present, callback))
        else:
            callback()

    def refuse_all(self, error: ServingError) -> None:
        """Answer everyone with ``error``."""
        code, details = status_of(error)
        for run in tuple(self._runs.values()):
            run.drop()
            self.failed(run, code.value[0], details)

    def close(self) -> None:
        """Refuse everyone."""
        self.refuse_all(StoppingError("the server is shutting down"))

    def _plan_for(self, requested: Iterable[str]) -> EnsemblePlan:
        """Return the plan for some outputs; none are all of them."""
        names = frozenset(requested)
        if not names:
            return self._plan
        plan = self._plans.get(names)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[names] = self._plan.narrowed(names)
        return plan

    def _check_forms(self, wire: EnsembleRequest) -> None:
        """Refuse an output that cannot have the form that the client wants."""
        for name, parameters in wire.outputs.items():
            if parameters and name in self._plan.readers:
                raise UnsupportedError(
                    f"output '{name}' of ensemble '{self.route.model}' is an input of "
                    "one of its models too: it can be had neither as classes nor in "
                    "shared memory"
                )

    def _run_for(
        self, request: PendingRequest, wire: EnsembleRequest
    ) -> EnsembleRun | StreamedRun:
        plan, members = self._plan_for(wire.outputs), self._members
        if self._decoupled is None:
            self._decoupled = frozenset(
                i for i, each in members.items() if is_decoupled(each.scheduler)
            )
        if self._decoupled.isdisjoint(plan.steps):
            return EnsembleRun(self, request, wire, members, plan)
        if not takes_many(request):
            raise UnsupportedError(_DECOUPLED_TEXT)
        layers = layers_of(plan, self._decoupled)
        ensemble = self.route.config.ensemble
        limit = ensemble.max_inflight_requests if ensemble is not None else 0
        return StreamedRun(self, request, wire, members, layers, limit=limit)

    def _refuse(self, request: PendingRequest, error: ServingError) -> None:
        refuse(request, error)
        elapsed_ns = time.monotonic_ns() - request.enqueued_ns
        self.statistics.failed(elapsed_ns, failure_reason(error))

    def _ended(self, run: EnsembleRun | StreamedRun) -> None:
        self._runs.pop(run.request, None)
        if self._watchers:
            for present, _ in self._watchers:
                present.discard(run)
            due = [callback for present, callback in self._watchers if not present]
            self._watchers = [each for each in self._watchers if each[0]]
            for callback in due:
                callback()
        self._check_quiet()

    def _check_quiet(self) -> None:
        if self._on_quiet is not None and self.is_quiet:
            callback, self._on_quiet = self._on_quiet, None
            callback()


def is_decoupled(scheduler: RouteScheduler) -> bool:
    """Tell whether a request to ``scheduler`` may have any number of responses."""
    if isinstance(scheduler, EnsembleScheduler):
        return scheduler.is_decoupled
    return scheduler.route.config.decoupled


def when_all_present_end(
    ensembles: Iterable[EnsembleScheduler], callback: Callable[[], None]
) -> None:
    """Call back, once, as soon as all those are answered who are under way now."""
    waiting = 1

    def ended() -> None:
        nonlocal waiting
        waiting -= 1
        if waiting == 0:
            callback()

    for ensemble in ensembles:
        waiting += 1
        ensemble.when_present_end(ended)
    ended()
