"""The shell around the sequencer: for models that keep state from call to call.

Like ``Scheduler``, but a sequence stays on its instance: if that is lost, the
sequence ends with an error that asks its client to START anew.
"""

import itertools
import random
import time
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from services.core.completion_queue import Reactor, Timer
from services.core.errors import (
    BackendError,
    ServingError,
    StoppingError,
)
from services.core.model_config import OldestStrategy, SequenceBatching
from services.core.statistics_fields import FailureReason
from services.core.wire_format import WireFormatError
from services.router import sequence_errors
from services.router.alarm import Alarm
from services.router.execution_answers import UNREADABLE_TEXT, Unanswered, hand_out
from services.router.in_order import InOrder, OrderedRequest
from services.router.pending_request import (
    Execution,
    Instance,
    PendingRequest,
    refuse,
)
from services.router.queue_limits import QueueLimits
from services.router.route_table import Route
from services.router.sequence import Sequence
from services.router.sequence_controls import SequenceControls
from services.router.sequence_members import SequenceMembers
from services.router.sequence_policy import sequence_policy_of
from services.router.sequence_request import (
    GapRequest,
    SequenceRequest,
    sequence_request,
)
from services.router.sequence_resumption import SequenceResumption
from services.router.sequence_step import Dispatch
from services.router.sequencer import Sequencer
from services.router.state_checkpoints import StateCheckpoints
from services.router.state_notices import ended_notice
from services.router.statistics import ModelStatistics, failure_reason

_log = structlog.get_logger(__name__)

_STOPPING_TEXT: Final = "the server is shutting down"
# Where the ids that we give begin: they fit every datatype, and those of two routers
# are as good as never the same.
_MOST_FIRST_ID: Final = 1 << 30


class SequenceScheduler:
    """Sequences and instances of one generation."""

    __slots__ = (
        "_controls",
        "_idle",
        "_ids",
        "_instances",
        "_is_closed",
        "_keeps_states",
        "_limits",
        "_members",
        "_now_ns",
        "_on_quiet",
        "_order",
        "_policy",
        "_reactor",
        "_resumption",
        "_sequencer",
        "_streaming",
        "_unserved",
        "_wake",
        "dispatch",
        "route",
        "statistics",
    )

    def __init__(
        self,
        route: Route,
        batching: SequenceBatching,
        reactor: Reactor,
        now_ns: Callable[[], int] = time.monotonic_ns,
        *,
        limits: QueueLimits | None = None,
        checkpoints: StateCheckpoints | None = None,
    ) -> None:
        """Start with no sequence and no instance.

        Args:
            route: Whose requests.
            batching: What its configuration says of sequences.
            reactor: Keeps the timers.
            now_ns: The monotonic clock.
            limits: Bounds of the queue.
            checkpoints: Keeps states outside the workers, for a model that asks.
        """
        self.route = route
        self.statistics = ModelStatistics()
        self._reactor = reactor
        self._now_ns = now_ns
        self._limits = limits or QueueLimits()
        self._controls = SequenceControls(
            route.model, batching, is_batched=route.config.max_batch_size > 0
        )
        self._policy = sequence_policy_of(route, batching, self._limits)
        self._sequencer: Sequencer[SequenceRequest, Instance] = Sequencer(self._policy)
        strategy = batching.strategy
        in_order = isinstance(strategy, OldestStrategy) and strategy.preserve_ordering
        self._order = InOrder() if in_order and not route.config.decoupled else None
        self._keeps_states = bool(batching.states)
        self._resumption = None
        if self._policy.is_resumable and checkpoints is not None:
            idle_ns = batching.max_sequence_idle_ns
            self._resumption = SequenceResumption(
                checkpoints, route.generation, idle_ns, self._after_patience
            )
        self._ids = itertools.count(random.randrange(1, _MOST_FIRST_ID))  # noqa: S311
        self._instances: set[Instance] = set()
        self._idle: dict[Instance, None] = {}
        self._members = SequenceMembers()
        self._streaming = 0
        self._wake = Alarm(reactor, self._dispatch)
        self._unserved = Alarm(reactor, self._unserved_due)
        self._on_quiet: Callable[[], None] | None = None
        self._is_closed = False
        # One bound method for all, so that the reactor can tell it is known.
        self.dispatch = self._dispatch

    @property
    def has_instance(self) -> bool:
        """Whether anyone is there to execute a request."""
        return bool(self._instances)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._sequencer)

    @property
    def is_quiet(self) -> bool:
        """Whether no request waits and none is being executed."""
        return (
            not self.waiting
            and len(self._idle) == len(self._instances)
            and not self._streaming
        )

    def enqueue(self, request: PendingRequest) -> None:
        """Take an admitted request, or refuse it if its sequence does."""
        try:
            if request.rows > 1:
                raise sequence_errors.too_many_rows(self.route.model, request.body)
            member = sequence_request(request, self._controls)
            if self._policy.is_iterative and not member.correlation_id:
                member.begin_own(self._unused_id())
            self._sequencer.enqueue(member)
        except ServingError as error:
            self._fail_all((request,), error)
            return
        self._members.wait(member)
        if self._order is not None:
            member.request = self._order.join(request)
        if self._members.size_bytes > self._limits.max_queue_bytes:
            self._refuse_overload(member)
            return
        if not self._instances:
            self._arm_unserved()
        if self._idle or member.timeout_ns:
            self._reactor.call_when_drained(self.dispatch)

    def time(self, request: PendingRequest) -> None:
        """Do nothing: the times of a sequence's requests are not told."""

    def forget(self, request: PendingRequest) -> None:
        """End the sequence of a request whose client has left."""
        member = self._members.of(request)
        if member is None:
            return
        if isinstance(member.request, OrderedRequest) and not member.request.leave():
            return  # its answer, which waited for its turn, was counted
        self._members.settle(member)
        self.statistics.failed(
            self._now_ns() - request.enqueued_ns, FailureReason.CANCELED
        )
        others = self._sequencer.cancel(member)
        self._fail_all(others, sequence_errors.cancelled(member.correlation_id))
        self._dispatch()
        self._check_quiet()

    def attach(self, instance: Instance) -> None:
        """Take an instance into service."""
        self._instances.add(instance)
        self._idle[instance] = None
        self._sequencer.add_instance(instance)
        self._dispatch()

    def detach(
        self,
        instance: Instance,
        unanswered: tuple[Execution, ...],
        *,
        were_begun: bool = True,
    ) -> None:
        """Let an instance go, and with it its sequences, unless they may resume."""
        self._instances.discard(instance)
        self._idle.pop(instance, None)
        resumption = None if self._is_closed else self._resumption
        may_resume = resumption is not None
        orphans = self._sequencer.remove_instance(instance, may_resume=may_resume)
        kept = {r for sequence in orphans.homeless for r in sequence.requests}
        running = [r for each in unanswered for r in each.batch if r not in kept]
        self._fail_all((*running, *orphans.lost), self._lost())
        if resumption is not None:
            resumption.lost(instance, unanswered if were_begun else ())
            for sequence in orphans.homeless:
                resumption.rehome(sequence, self._resume, self._give_up)
        if self.waiting and not self._instances:
            self._arm_unserved()
        self._check_quiet()

    def completed(
        self, instance: Instance, execution: Execution, message: bytes
    ) -> None:
        """Hand out the answers; if nothing runs again, after the next batch is sent."""
        self._idle[instance] = None
        if not self._policy.settles_late:
            self._dispatch()
        if self._resumption is not None:
            self._resumption.answered(instance)
        try:
            again = hand_out(
                execution,
                message,
                self.statistics,
                self._now_ns(),
                is_iterative=self._policy.is_iterative,
            )
        except (WireFormatError, ValueError, IndexError):
            _log.exception("a worker's answer could not be read", **self._names())
            self._fail_all(execution.batch, BackendError(UNREADABLE_TEXT))
            again = Unanswered()
        for request in execution.batch:
            if isinstance(request, SequenceRequest):
                self._settle(request, again=request in again.requests)
        if self._policy.settles_late:
            self._dispatch()
        self._check_quiet()

    def take_states(self, instance: Instance, message: bytes) -> None:
        """Take the states that an execution has left behind, before its answers."""
        if self._resumption is not None:
            self._resumption.arrived(instance, message)

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
        self._fail_all(self._sequencer.drain(), error)

    def close(self) -> None:
        """Refuse everyone who waits and part from the instances."""
        self._is_closed = True
        self.refuse_all(StoppingError(_STOPPING_TEXT))
        for instance in tuple(self._instances):
            instance.close()

    def _resume(self, sequence: Sequence[SequenceRequest]) -> None:
        """Have a sequence that lost its instance go on, its state being there."""
        self.statistics.retried(min(len(sequence.requests), 1))
        self._sequencer.resume(sequence)
        self._dispatch()

    def _give_up(self, sequence: Sequence[SequenceRequest]) -> None:
        """End a sequence that lost its instance, for good."""
        self._fail_all(self._sequencer.give_up(sequence), self._lost())
        self._tell_ended()
        self._check_quiet()

    def _after_patience(self, callback: Callable[[], None]) -> Timer:
        """Call back when nobody may wait for a worker any longer."""
        when_ns = self._now_ns() + self._limits.no_worker_timeout_ns
        return self._reactor.call_at(when_ns, callback)

    def _lost(self) -> ServingError:
        """Return what the requests of a sequence that has ended so are told."""
        if self._is_closed:
            return StoppingError(_STOPPING_TEXT)
        return sequence_errors.lost(self.route.model)

    def _unused_id(self) -> int:
        """Return an id for a sequence whose client gave none."""
        return next(i for i in self._ids if i not in self._sequencer)

    def _settle(self, member: SequenceRequest, *, again: bool) -> None:
        """Note that a request was executed, and is answered or wanted back."""
        if self._sequencer.completed(member, again=again):
            self._members.wait(member)
        else:
            self._members.settle(member)

    def _refuse_overload(self, member: SequenceRequest) -> None:
        """Refuse the request that is one too many, and end its sequence.

        The requests behind it would miss it.
        """
        error = sequence_errors.overloaded(
            self.route.model, member.client.body, self._members.size_bytes
        )
        others = self._sequencer.cancel(member)
        self._fail_all((*others, member), error)

    def _dispatch(self) -> None:
        now_ns = self._now_ns()
        step = self._sequencer.step(now_ns, tuple(self._idle))
        for dispatch in step.dispatches:
            del self._idle[dispatch.instance]
            batch = self._batch(dispatch)
            if self._resumption is not None:
                for member in dispatch.requests:
                    self._resumption.restore(dispatch.instance, member.number)
            dispatch.instance.execute(Execution(batch, now_ns))
        self._tell_ended()
        self._fail_all(step.expired, sequence_errors.expired())
        if step.wake_ns is not None:
            self._wake.ring_at(step.wake_ns)

    def _tell_ended(self) -> None:
        """Tell the instances whose states they need not keep; behind their batches."""
        ended: dict[Instance, list[int]] = {}
        for instance, number in self._sequencer.take_ended():
            if instance is not None:
                ended.setdefault(instance, []).append(number)
            if self._resumption is not None:
                self._resumption.ended(number)
        if self._keeps_states:
            for instance, numbers in ended.items():
                instance.tell(ended_notice(numbers))

    def _batch(
        self, dispatch: Dispatch[SequenceRequest, Instance]
    ) -> tuple[PendingRequest, ...]:
        for member in dispatch.requests:
            self._members.begin(member)
            member.tell()
        if None not in dispatch.rows:
            return dispatch.requests
        gap = GapRequest(dispatch.requests[0], self._controls)
        return tuple(row if row is not None else gap for row in dispatch.rows)

    def _arm_unserved(self) -> None:
        """Have everyone refused if no instance comes in time."""
        self._unserved.ring_at(self._now_ns() + self._limits.no_worker_timeout_ns)

    def _unserved_due(self) -> None:
        if not self._instances:
            self.refuse_all(sequence_errors.unserved(self.route))
            self._check_quiet()

    def _fail_all(
        self, requests: Iterable[PendingRequest], error: ServingError
    ) -> None:
        now_ns = self._now_ns()
        for request in requests:
            if isinstance(request, SequenceRequest):
                self._members.settle(request)
            if request.open:
                refuse(request, error)
                waited_ns = now_ns - request.enqueued_ns
                self.statistics.failed(waited_ns, failure_reason(error))

    def _check_quiet(self) -> None:
        if self._on_quiet is not None and self.is_quiet:
            callback, self._on_quiet = self._on_quiet, None
            callback()

    def _names(self) -> dict[str, object]:
        return {"model": self.route.model, "version": self.route.version}
