"""The shell around ensemble plans: steps go to the schedulers of their models.

A step is a request like any other once it is admitted, so steps of many ensemble
requests, and those of clients, share batches. All on the reactor's thread.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import grpc
import structlog

from services.core.errors import (
    BackendError,
    ModelNotReadyError,
    ServingError,
    StoppingError,
    UnsupportedError,
)
from services.core.statistics_fields import FailureReason
from services.core.status import status_of
from services.core.wire_format import WireFormatError
from services.router.admission import Admission
from services.router.ensemble_plan import EnsemblePlan, Move, Progress, plan_of
from services.router.ensemble_wire import (
    EnsembleRequest,
    Tensor,
    ensemble_response,
    read_request,
    read_response,
    step_request,
)
from services.router.pending_request import PendingRequest, Taker, refuse
from services.router.route_scheduler import RouteScheduler
from services.router.route_table import Route
from services.router.statistics import ModelStatistics, failure_reason

_log = structlog.get_logger(__name__)

_DECOUPLED_TEXT: Final = "a decoupled model cannot be a step of an ensemble yet"
_MOST_PLANS: Final = 256
_INTERNAL: Final[int] = grpc.StatusCode.INTERNAL.value[0]
_UNAVAILABLE: Final[int] = grpc.StatusCode.UNAVAILABLE.value[0]
_CANCELLED: Final[int] = grpc.StatusCode.CANCELLED.value[0]
_REASONS: Final = {
    _UNAVAILABLE: FailureReason.REJECTED,
    _CANCELLED: FailureReason.CANCELED,
}

Find: TypeAlias = Callable[[str, str], RouteScheduler | None]
"""Who takes the requests for a model and a version ("": the newest), if anyone."""


@dataclass(frozen=True, slots=True)
class Member:
    """Who executes a step, and what stands before it."""

    scheduler: RouteScheduler
    taker: Taker


class StepCall:
    """One step of one ensemble request, as the scheduler of its model sees it."""

    __slots__ = (
        "_run",
        "attempts",
        "body",
        "enqueued_ns",
        "open",
        "priority",
        "rows",
        "scheduler",
        "shape_key",
        "step",
        "taker",
        "timeout_ns",
    )

    body: bytes
    rows: int
    shape_key: Hashable
    enqueued_ns: int
    priority: int
    timeout_ns: int

    def __init__(self, run: "EnsembleRun", step: int, member: Member) -> None:
        """Belong to ``run``."""
        self._run = run
        self.step = step
        self.scheduler = member.scheduler
        self.taker = member.taker
        self.attempts = 0
        self.open = True

    @property
    def request(self) -> PendingRequest:
        """The ensemble's request that it is a step of."""
        return self._run.request

    def answer(self, message: bytes) -> None:
        """Take a serialized ModelInferResponse."""
        if self.open:
            self.open = False
            self._run.step_answered(self, message)

    def fail(self, code: int, details: str) -> None:
        """Take an error."""
        if self.open:
            self.open = False
            self._run.step_failed(self, code, details)


class EnsembleRun:
    """One request of an ensemble under way."""

    __slots__ = (
        "_calls",
        "_members",
        "_owner",
        "_progress",
        "_wire",
        "began_ns",
        "request",
    )

    def __init__(
        self,
        owner: "EnsembleScheduler",
        request: PendingRequest,
        wire: EnsembleRequest,
        members: Mapping[int, Member],
    ) -> None:
        """Prepare; nothing runs yet.

        Args:
            owner: Is told of the end.
            request: Whom to answer.
            wire: Its contents.
            members: By step, who executes it; kept to the end.
        """
        self._owner = owner
        self.request = request
        self._wire = wire
        self._members = members
        self._progress: Progress[Tensor] = Progress(owner.plan_for(wire.outputs))
        self._calls: dict[int, StepCall] = {}
        self.began_ns = 0

    def begin(self) -> None:
        """Submit the steps that need nothing but the client's tensors."""
        self.began_ns = time.monotonic_ns()
        self._make(self._progress.begin(self._wire.tensors))

    def step_answered(self, call: StepCall, message: bytes) -> None:
        """Go on with what a step has returned."""
        del self._calls[call.step]
        try:
            outputs = read_response(message)
        except (WireFormatError, IndexError, UnicodeDecodeError):
            _log.exception("a step's answer could not be read", step=call.step)
            self._end_with(_INTERNAL, "a step's answer could not be read")
            return
        self._make(self._progress.answered(call.step, outputs))

    def step_failed(self, call: StepCall, code: int, details: str) -> None:
        """End with the step's error; the rest is dropped."""
        del self._calls[call.step]
        self._end_with(code, f"in ensemble '{self._progress.plan.name}', {details}")

    def drop(self) -> None:
        """Cancel all steps under way."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.open = False
            call.taker.forget(call)

    def _make(self, move: Move) -> None:
        if move.problem:
            self._end_with(_INTERNAL, move.problem)
        elif move.is_done:
            self._answer()
        else:
            for step in move.run:
                # One that fails at once ends the run.
                if self.request.open:
                    self._submit(step)

    def _submit(self, step: int) -> None:
        planned = self._progress.plan.steps[step]
        tensors = self._progress.tensors
        call = self._calls[step] = StepCall(self, step, self._members[step])
        body = step_request(
            model=planned.model,
            version=planned.version,
            request=self._wire,
            inputs=[(n, tensors[t]) for n, t in planned.inputs if t in tensors],
            outputs=[
                (name, self._wire.outputs.get(tensor, b""))
                for name, tensor in planned.outputs
            ],
        )
        self._owner.submit(call, body)

    def _answer(self) -> None:
        tensors = self._progress.tensors
        results = self._progress.plan.results
        message = ensemble_response(
            model=self._owner.route.model,
            version=self._owner.route.version_text,
            request=self._wire,
            outputs=[(name, tensors[name]) for name in results if name in tensors],
        )
        self.drop()
        self._owner.succeeded(self, message)

    def _end_with(self, code: int, details: str) -> None:
        self.drop()
        self._owner.failed(self, code, details)


class EnsembleScheduler:
    """Takes the requests of one generation of an ensemble; a ``RouteScheduler``."""

    __slots__ = (
        "_admission",
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
        self._runs: dict[PendingRequest, EnsembleRun] = {}
        self._on_quiet: Callable[[], None] | None = None
        self._watchers: list[tuple[set[EnsembleRun], Callable[[], None]]] = []

    @property
    def has_instance(self) -> bool:
        """Whether every member is there to execute its step."""
        return len(self._members) == len(self._plan.steps) and all(
            member.scheduler.has_instance for member in self._members.values()
        )

    @property
    def waiting(self) -> int:
        """0: whoever waits is in the queue of a member."""
        return 0

    @property
    def is_quiet(self) -> bool:
        """Whether no request is under way."""
        return not self._runs

    def bind(self, find: Find, taker_of: Callable[[RouteScheduler], Taker]) -> None:
        """Send the steps of requests that come from now on to whom ``find`` names."""
        found = {
            i: find(step.model, step.version) for i, step in self._plan.steps.items()
        }
        self._members = {
            i: Member(each, taker_of(each)) for i, each in found.items() if each
        }

    def plan_for(self, requested: Iterable[str]) -> EnsemblePlan:
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

    def enqueue(self, request: PendingRequest) -> None:
        """Run an admitted request."""
        if len(self._members) < len(self._plan.steps):
            message = f"a model of ensemble '{self.route.model}' is not ready"
            self._refuse(request, ModelNotReadyError(message))
            return
        wire = read_request(request.body)
        objection = self._objection(wire)
        if objection is not None:
            self._refuse(request, objection)
            return
        run = self._runs[request] = EnsembleRun(self, request, wire, self._members)
        run.begin()

    def submit(self, call: StepCall, body: bytes) -> None:
        """Admit a step and hand it to its scheduler."""
        try:
            verdict, call.body = self._admission.admit_to(call.scheduler.route, body)
        except ServingError as error:
            refuse(call, error)
            return
        if verdict.route.config.decoupled:
            refuse(call, UnsupportedError(_DECOUPLED_TEXT))
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

    def failed(self, run: EnsembleRun, code: int, details: str) -> None:
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

    def _objection(self, wire: EnsembleRequest) -> ServingError | None:
        """Return why an output cannot have the form that the client wants."""
        for name, parameters in wire.outputs.items():
            if parameters and name in self._plan.readers:
                return BackendError(
                    f"output '{name}' of ensemble '{self.route.model}' is an input of "
                    "one of its models too: it can be had neither as classes nor in "
                    "shared memory"
                )
        return None

    def _refuse(self, request: PendingRequest, error: ServingError) -> None:
        refuse(request, error)
        elapsed_ns = time.monotonic_ns() - request.enqueued_ns
        self.statistics.failed(elapsed_ns, failure_reason(error))

    def _ended(self, run: EnsembleRun) -> None:
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
