"""The shell around the sequencer: for models that keep state from call to call.

Like ``Scheduler``, but a sequence stays on its instance: if that is lost, the
sequence ends with an error that asks its client to START anew.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final

import grpc
import structlog

from services.core.completion_queue import Reactor
from services.core.errors import (
    BackendError,
    InvalidRequestError,
    ModelNotReadyError,
    OverloadedError,
    RequestCancelledError,
    ServingError,
    StoppingError,
)
from services.core.model_config import OldestStrategy, SequenceBatching
from services.core.statistics_fields import FailureReason
from services.core.wire_format import WireFormatError
from services.router.alarm import Alarm
from services.router.batch_response import replies_of, timing_of
from services.router.pending_request import (
    Execution,
    Instance,
    PendingRequest,
    refuse,
)
from services.router.queue_limits import QueueLimits
from services.router.request_content import request_prefix
from services.router.route_table import Route
from services.router.sequence_controls import SequenceControls
from services.router.sequence_request import GapRequest, SequenceRequest
from services.router.sequencer import Dispatch, SequencePolicy, Sequencer
from services.router.statistics import ModelStatistics, failure_reason

_log = structlog.get_logger(__name__)

_INTERNAL: Final[int] = grpc.StatusCode.INTERNAL.value[0]


def sequence_policy_of(
    route: Route, batching: SequenceBatching, limits: QueueLimits
) -> SequencePolicy:
    """Return how the sequences of ``route`` share instances."""
    rows = max(route.config.max_batch_size, 1)
    strategy = batching.strategy
    if isinstance(strategy, OldestStrategy):
        return SequencePolicy(
            model=route.model,
            slots=strategy.max_candidate_sequences or rows,
            max_batch_size=rows,
            keeps_slots=False,
            max_idle_ns=batching.max_sequence_idle_ns,
            max_queue_delay_ns=strategy.max_queue_delay_ns,
            preferred_batch_sizes=strategy.preferred_batch_sizes,
            hold_until=limits.hold_until,
        )
    return SequencePolicy(
        model=route.model,
        slots=rows,
        max_batch_size=rows,
        keeps_slots=True,
        max_idle_ns=batching.max_sequence_idle_ns,
        max_queue_delay_ns=strategy.max_queue_delay_ns,
        minimum_utilization=strategy.minimum_slot_utilization,
        hold_until=limits.hold_until,
        backlog_hold_until=limits.backlog_hold_until,
    )


class SequenceScheduler:
    """Sequences and instances of one generation."""

    __slots__ = (
        "_controls",
        "_idle",
        "_instances",
        "_is_closed",
        "_limits",
        "_members",
        "_now_ns",
        "_on_quiet",
        "_reactor",
        "_sequencer",
        "_size_bytes",
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
    ) -> None:
        """Start with no sequence and no instance."""
        self.route = route
        self.statistics = ModelStatistics()
        self._reactor = reactor
        self._now_ns = now_ns
        self._limits = limits or QueueLimits()
        self._controls = SequenceControls(
            route.model, batching, is_batched=route.config.max_batch_size > 0
        )
        self._sequencer: Sequencer[SequenceRequest, Instance] = Sequencer(
            sequence_policy_of(route, batching, self._limits)
        )
        self._instances: set[Instance] = set()
        self._idle: dict[Instance, None] = {}
        self._members: dict[PendingRequest, SequenceRequest] = {}
        self._size_bytes = 0
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
            self._check_rows(request)
            member = SequenceRequest(request, self._controls)
            self._sequencer.enqueue(member)
        except ServingError as error:
            self._fail_all((request,), error)
            return
        self._members[request] = member
        self._size_bytes += len(member.body)
        if self._size_bytes > self._limits.max_queue_bytes:
            self._refuse_overload(member)
            return
        if not self._instances:
            self._arm_unserved()
        elif self._idle:
            self._reactor.call_when_drained(self.dispatch)

    def time(self, request: PendingRequest) -> None:
        """Do nothing: the times of a sequence's requests are not told."""

    def forget(self, request: PendingRequest) -> None:
        """End the sequence of a request whose client has left."""
        member = self._left(request)
        if member is None:
            return
        self.statistics.failed(
            self._now_ns() - request.enqueued_ns, FailureReason.CANCELED
        )
        others = self._sequencer.cancel(member)
        message = (
            f"a request of sequence {member.correlation_id} was cancelled, which ends "
            "the sequence"
        )
        self._fail_all(others, RequestCancelledError(message))
        self._dispatch()

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
        """Let an instance go, and with it its sequences."""
        del were_begun  # their state is gone in any case
        self._instances.discard(instance)
        self._idle.pop(instance, None)
        lost = [r for execution in unanswered for r in execution.batch if r.open]
        lost += self._sequencer.remove_instance(instance)
        error: ServingError = StoppingError("the server is shutting down")
        if not self._is_closed:
            error = ModelNotReadyError(
                f"the worker that kept the sequence's state of model "
                f"'{self.route.model}' was lost; begin the sequence anew with the "
                "START flag"
            )
        self._fail_all(lost, error)
        if self.waiting and not self._instances:
            self._arm_unserved()
        self._check_quiet()

    def completed(
        self, instance: Instance, execution: Execution, message: bytes
    ) -> None:
        """Hand out the answers, after the next batch has been sent."""
        self._idle[instance] = None
        self._dispatch()
        now_ns = self._now_ns()
        rows = answered = streamed = success_ns = 0
        try:
            timing, start = timing_of(message)
            replies = replies_of(message, start)
            for request, (response, error) in zip(
                execution.batch, replies, strict=True
            ):
                if not request.open:
                    continue
                elapsed_ns = now_ns - request.enqueued_ns
                if response is not None:
                    request.answer(response)
                    rows += request.rows
                    answered += 1
                    success_ns += elapsed_ns
                elif error is not None:
                    request.fail(error.code or _INTERNAL, error.message)
                    if not error.is_answer:
                        self.statistics.failed(elapsed_ns, FailureReason.BACKEND)
                        continue
                    # It is the model's own answer, and the execution succeeded.
                    rows += request.rows
                    answered += 1
                    success_ns += elapsed_ns
                else:
                    streamed += 1
        except (WireFormatError, ValueError, IndexError):
            _log.exception("a worker's answer could not be read", **self._names())
            error_text = "the worker's answer could not be read"
            self._fail_all(execution.batch, BackendError(error_text))
            self._check_quiet()
            return
        latencies = self.statistics.latencies
        if latencies is not None and answered:
            durations = execution.durations(replies_of(message, start), now_ns)
            self.statistics.took(latencies, durations, timing)
        self.statistics.executed(
            batch_rows=execution.rows,
            rows=rows,
            requests=answered,
            queue_ns=success_ns - answered * (now_ns - execution.dispatched_ns),
            success_ns=success_ns,
            timing=timing,
            at_ms=time.time_ns() // 1_000_000,
        )
        if streamed:
            self.statistics.compute.add(streamed, timing)
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
        self._fail_all(self._sequencer.drain(), error)

    def close(self) -> None:
        """Refuse everyone who waits and part from the instances."""
        self._is_closed = True
        self.refuse_all(StoppingError("the server is shutting down"))
        for instance in tuple(self._instances):
            instance.close()

    def _refuse_overload(self, member: SequenceRequest) -> None:
        """Refuse the request that is one too many, and end its sequence.

        The requests behind it would miss it.
        """
        others = self._sequencer.cancel(member)
        message = (
            f"{request_prefix(member.request.body)}Exceeds maximum queue size: "
            f"{self._size_bytes} bytes wait for model '{self.route.model}'; begin the "
            "sequence anew with the START flag"
        )
        self._fail_all((*others, member), OverloadedError(message))

    def _left(self, request: PendingRequest) -> SequenceRequest | None:
        """Drop what is kept of a request that waited; None if it did not."""
        member = self._members.pop(request, None)
        if member is not None:
            self._size_bytes -= len(member.body)
        return member

    def _check_rows(self, request: PendingRequest) -> None:
        if request.rows > 1:
            message = (
                f"{request_prefix(request.body)}inference request to model "
                f"'{self.route.model}' must specify batch-size 1 due to requirements "
                "of sequence batcher"
            )
            raise InvalidRequestError(message)

    def _dispatch(self) -> None:
        now_ns = self._now_ns()
        step = self._sequencer.step(now_ns, tuple(self._idle))
        for dispatch in step.dispatches:
            del self._idle[dispatch.instance]
            batch = self._batch(dispatch)
            dispatch.instance.execute(Execution(batch, now_ns))
        if step.wake_ns is not None:
            self._wake.ring_at(step.wake_ns)

    def _batch(
        self, dispatch: Dispatch[SequenceRequest, Instance]
    ) -> tuple[PendingRequest, ...]:
        first = dispatch.requests[0]
        for member in dispatch.requests:
            self._left(member.request)
        return tuple(
            row if row is not None else GapRequest(first, self._controls)
            for row in dispatch.rows
        )

    def _arm_unserved(self) -> None:
        """Have everyone refused if no instance comes in time."""
        self._unserved.ring_at(self._now_ns() + self._limits.no_worker_timeout_ns)

    def _unserved_due(self) -> None:
        if not self._instances:
            message = (
                f"no worker serves model '{self.route.model}' version "
                f"{self.route.version_text} now"
            )
            self.refuse_all(ModelNotReadyError(message))
            self._check_quiet()

    def _fail_all(
        self, requests: Iterable[PendingRequest], error: ServingError
    ) -> None:
        now_ns = self._now_ns()
        for request in requests:
            if isinstance(request, SequenceRequest):
                self._left(request.request)
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
