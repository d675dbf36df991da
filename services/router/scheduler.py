"""The shell around the batcher: one for each generation of a model version.

It owns the waiting requests and the instances that may execute them, and asks the
batcher whenever either side changes. All on the reactor's thread.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final

import grpc
import structlog

from services.core.completion_queue import Reactor
from services.core.errors import (
    BackendError,
    ModelNotReadyError,
    OverloadedError,
    ServingError,
    StoppingError,
)
from services.core.statistics_fields import FailureReason
from services.core.wire_format import WireFormatError
from services.router.alarm import Alarm
from services.router.batcher import Batcher
from services.router.entrance import Entrance
from services.router.execution_answers import (
    UNREADABLE_TEXT,
    Unanswered,
    hand_out,
)
from services.router.in_order import InOrder
from services.router.model_queue import policy_of, queue_of
from services.router.pending_request import (
    Execution,
    Instance,
    PendingRequest,
    refuse,
)
from services.router.queue_limits import QueueLimits
from services.router.recovery import Recovery
from services.router.retries import Isolation
from services.router.route_table import Route
from services.router.statistics import ModelStatistics, failure_reason
from services.router.timed_requests import TimedRequests

_log = structlog.get_logger(__name__)

_INTERNAL: Final[int] = grpc.StatusCode.INTERNAL.value[0]
_RESOURCE_EXHAUSTED: Final[int] = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
# Set to "false" in a model's parameters: nothing of it is ever executed twice.
_IDEMPOTENT_PARAMETER: Final = "nereid_idempotent"
_TIMEOUT_TEXT: Final = "Request timeout expired"
_STOPPING_TEXT: Final = "the server is shutting down"


class Scheduler:
    """Queue and instances of one generation."""

    __slots__ = (
        "_batcher",
        "_company",
        "_entrance",
        "_expiry",
        "_idle",
        "_instances",
        "_is_closed",
        "_is_wary",
        "_limits",
        "_now_ns",
        "_on_quiet",
        "_order",
        "_reactor",
        "_recovery",
        "_streaming",
        "_timed",
        "_unserved",
        "dispatch",
        "route",
        "statistics",
    )

    def __init__(
        self,
        route: Route,
        reactor: Reactor,
        now_ns: Callable[[], int] = time.monotonic_ns,
        *,
        limits: QueueLimits | None = None,
        isolation: Isolation | None = None,
    ) -> None:
        """Start with no request and no instance.

        Args:
            route: Whose requests.
            reactor: Keeps the timers.
            now_ns: The monotonic clock.
            limits: Bounds of the queue.
            isolation: Shared by the schedulers of a router.
        """
        self._now_ns = now_ns
        self.route = route
        self.statistics = ModelStatistics()
        self._reactor = reactor
        self._limits = limits = limits or QueueLimits()
        self._batcher: Batcher[PendingRequest] = Batcher(
            policy_of(route, limits.hold_until), queue_of(route)
        )
        batching = route.config.dynamic_batching
        in_order = (
            batching is not None
            and batching.preserve_ordering
            and not route.config.decoupled
        )
        self._order = InOrder() if in_order else None
        self._recovery = Recovery(
            isolation or Isolation(),
            is_idempotent=route.config.parameters.get(_IDEMPOTENT_PARAMETER) != "false",
        )
        # With the time when each came.
        self._instances: dict[Instance, int] = {}
        self._idle: list[Instance] = []
        self._entrance = Entrance(
            route, self._batcher, self._recovery.quarantine, limits, now_ns()
        )
        self._company = Alarm(reactor, self._dispatch)
        self._expiry = Alarm(reactor, self._expiry_due)
        self._unserved = Alarm(reactor, self._unserved_due)
        # Requests that are answered by streamed replies, beyond their execution.
        self._streaming = 0
        self._timed = TimedRequests(route)
        self._on_quiet: Callable[[], None] | None = None
        self._is_closed = False
        # Whether anything but the common case has to be thought of.
        self._is_wary = True
        # One bound method for all, so that the reactor can tell it is known.
        self.dispatch = self._dispatch

    @property
    def has_instance(self) -> bool:
        """Whether anyone is there to execute a batch."""
        return bool(self._instances)

    @property
    def waiting(self) -> int:
        """Requests in the queue, or waiting to run again."""
        return len(self._batcher) + len(self._recovery)

    @property
    def is_quiet(self) -> bool:
        """Whether no request waits and none is being executed."""
        return (
            not self.waiting
            and len(self._idle) == len(self._instances)
            and not self._streaming
        )

    def enqueue(self, request: PendingRequest) -> None:
        """Take an admitted request, or refuse it if it may not wait."""
        batcher = self._batcher
        if self._is_wary or batcher.size_bytes >= self._limits.max_queue_bytes:
            self._enqueue_warily(request)
            return
        batcher.enqueue(request)
        if self._idle:
            if batcher.is_full:
                self._dispatch()
            else:
                # What has already arrived rides along.
                self._reactor.call_when_drained(self.dispatch)

    def time(self, request: PendingRequest) -> None:
        """Have the times of ``request`` added to its response."""
        self._timed.add(request)

    def forget(self, request: PendingRequest) -> None:
        """Drop a request whose client has left, if it still waits."""
        if self._order is not None:
            ordered = self._order.standing_for(request)
            if ordered is not None:
                if not ordered.leave():
                    return  # its answer, which waited for its turn, was counted
                request = ordered
        self._batcher.remove(request)
        self._timed.forget((request,))
        waited_ns = self._now_ns() - request.enqueued_ns
        self.statistics.failed(waited_ns, FailureReason.CANCELED)
        self._check_quiet()

    def attach(self, instance: Instance) -> None:
        """Take an instance into service."""
        self._instances[instance] = self._now_ns()
        self._idle.append(instance)
        self._entrance.unserved_since_ns = None
        self._look()
        self._dispatch()

    def detach(
        self,
        instance: Instance,
        unanswered: tuple[Execution, ...],
        *,
        were_begun: bool = True,
    ) -> None:
        """Let an instance go; what it had not answered runs elsewhere."""
        self._instances.pop(instance, None)
        if instance in self._idle:
            self._idle.remove(instance)
        if not self._instances:
            self._entrance.unserved_since_ns = self._now_ns()
        for execution in unanswered:
            if were_begun or self._is_closed:
                self._lost(instance, execution)
            else:
                self._ended(instance, execution)
                self._recovery.take_back(execution)
        self._look()
        self._arm_unserved()
        self._dispatch()
        self._check_quiet()

    def completed(
        self, instance: Instance, execution: Execution, message: bytes
    ) -> None:
        """Hand out the answers, after the next batch has been sent."""
        self._idle.append(instance)
        if execution.is_isolated:
            self._ended(instance, execution)
        if len(self._batcher) or self._is_wary:
            self._dispatch()
        try:
            unanswered = hand_out(
                execution,
                message,
                self.statistics,
                self._now_ns(),
                edit=self._timed.editor(execution, instance) if self._timed else None,
                may_run_in_parts=True,
            )
        except (WireFormatError, ValueError, IndexError):
            _log.exception("a worker's answer could not be read", **self._names())
            self._fail_all(execution.batch, BackendError(UNREADABLE_TEXT))
            self._check_quiet()
            return
        if unanswered.requests:
            self._exhausted(execution, unanswered)
        if self._on_quiet is not None:
            self._check_quiet()

    def streaming(self, change: int) -> None:
        """Tell that more (or fewer) requests wait for streamed replies."""
        self._streaming += change
        self._check_quiet()

    def when_quiet(self, callback: Callable[[], None]) -> None:
        """Call back, once, as soon as everyone here has been answered."""
        self._on_quiet = callback
        self._check_quiet()

    def refuse_all(self, error: ServingError) -> None:
        """Answer everyone who waits with ``error``."""
        self._fail_all((*self._recovery.drain(), *self._batcher.drain()), error)

    def close(self) -> None:
        """Refuse everyone who waits and part from the instances."""
        self._is_closed = True
        self.refuse_all(StoppingError(_STOPPING_TEXT))
        for instance in tuple(self._instances):
            instance.close()

    def _enqueue_warily(self, request: PendingRequest) -> None:
        """Take a request, or refuse it, where more than the queue has to be asked."""
        error = self._entrance.objection(request, self._now_ns())
        if error is not None:
            self._fail_all((request,), error)
            return
        if self._order is not None:
            ordered = self._order.join(request)
            self._timed.replace(request, ordered)
            request = ordered
        self._batcher.enqueue(request)
        self._arm_expiry()
        if not self._instances:
            self._arm_unserved()
        elif self._idle:
            self._reactor.call_when_drained(self.dispatch)

    def _look(self) -> None:
        """Find out whether the common case holds."""
        self._is_wary = (
            self._order is not None
            or self._batcher.has_policies
            or self._entrance.unserved_since_ns is not None
            or not self._recovery.is_idle
            or not self._recovery.quarantine.is_empty(self._now_ns())
        )

    def _dispatch(self) -> None:
        idle = self._idle
        if self._is_wary:
            self._expire()
            self._send_again()
        while idle:
            now_ns = self._now_ns()
            step = self._batcher.step(now_ns)
            if step.batch:
                idle.pop().execute(Execution(step.batch, now_ns))
                continue
            if step.wake_ns is not None:
                self._company.ring_at(step.wake_ns)
            return

    def _send_again(self) -> None:
        """Send what has to run again, as far as there are instances for it."""
        recovery = self._recovery
        if recovery.is_idle:
            return
        now_ns = self._now_ns()
        while found := recovery.next_execution(
            self._idle, self._instances, now_ns, self.dispatch
        ):
            instance, execution = found
            instance.execute(execution)
        if self._idle and recovery.proven_ns > now_ns:
            self._company.ring_at(recovery.proven_ns)
        self._look()

    def _check_quiet(self) -> None:
        if self._on_quiet is not None and self.is_quiet:
            callback, self._on_quiet = self._on_quiet, None
            callback()

    def _expire(self) -> None:
        """Answer those whose timeout in the queue has ended."""
        expired = self._batcher.expire(self._now_ns())
        if expired:
            self._fail_all(expired, OverloadedError(_TIMEOUT_TEXT))

    def _arm_expiry(self) -> None:
        """Have ``_expire`` called when the next timeout ends, not later."""
        when_ns = self._batcher.next_expiry_ns
        if when_ns is not None:
            self._expiry.ring_at(when_ns)

    def _expiry_due(self) -> None:
        self._expire()
        self._arm_expiry()
        self._check_quiet()

    def _arm_unserved(self) -> None:
        """Have everyone refused if no instance comes in time."""
        when_ns = self._entrance.closes_ns
        if when_ns is not None and self.waiting:
            self._unserved.ring_at(when_ns)

    def _unserved_due(self) -> None:
        if self._entrance.is_closed(self._now_ns()):
            self.refuse_all(self._entrance.no_worker())
            self._look()
            self._check_quiet()
        else:
            self._arm_unserved()

    def _lost(self, instance: Instance, execution: Execution) -> None:
        """Decide about what ``instance`` was executing when it was lost."""
        self._ended(instance, execution)
        if self._is_closed:
            self._fail_all(execution.batch, StoppingError(_STOPPING_TEXT))
            return
        loss = self._recovery.lost(execution, instance.worker, self._now_ns())
        model = self.route.model
        if loss.again:
            self.statistics.retried(loss.again)
        self.statistics.lost(quarantined=len(loss.guilty))
        self._fail_all(
            loss.guilty,
            BackendError(f"the request has brought down workers of model '{model}'"),
        )
        self._fail_all(
            loss.given_up,
            ModelNotReadyError(
                f"a worker was lost while it executed model '{model}', which does "
                "not allow requests to run twice"
            ),
        )
        _log.warning(
            "an instance was lost with a batch",
            again=loss.again,
            guilty=len(loss.guilty),
            given_up=len(loss.given_up),
            worker=instance.worker,
            **self._names(),
        )

    def _ended(self, instance: Instance, execution: Execution) -> None:
        for waiting in self._recovery.ended(instance, execution):
            self._reactor.call_when_drained(waiting)

    def _exhausted(self, execution: Execution, unanswered: Unanswered) -> None:
        """Run a batch that was too large for its device in parts."""
        batch = tuple(unanswered.requests)
        if len(execution.batch) > 1:
            self._batcher.limit(execution.rows // 2)
        if self._recovery.exhausted(batch):
            self.statistics.retried(len(batch))
            self._look()
            self._dispatch()
        else:
            self._fail_all(batch, BackendError(unanswered.exhausted))

    def _fail_all(
        self, requests: Iterable[PendingRequest], error: ServingError
    ) -> None:
        now_ns = self._now_ns()
        for request in requests:
            self._timed.forget((request,))
            if request.open:
                refuse(request, error)
                self.statistics.failed(
                    now_ns - request.enqueued_ns, failure_reason(error)
                )

    def _names(self) -> dict[str, object]:
        return {"model": self.route.model, "version": self.route.version}
