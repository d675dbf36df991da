"""The shell around the batcher: one for each generation of a model version.

It owns the waiting requests and the instances that may execute them, and asks the
batcher whenever either side changes. All on the reactor's thread.
"""

import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import grpc
import structlog

from services.core.completion_queue import Reactor, Timer
from services.core.errors import (
    BackendError,
    ModelNotReadyError,
    ServingError,
    StoppingError,
)
from services.core.statistics_fields import FailureReason
from services.core.status import status_of
from services.core.wire_format import WireFormatError
from services.router.batch_response import Reply, replies_of, timing_of
from services.router.batcher import Batcher, BatchPolicy
from services.router.request_timing import timing_suffix
from services.router.route_table import Route
from services.router.statistics import ModelStatistics, failure_reason

_log = structlog.get_logger(__name__)

# A request whose worker died is run again once; who kills two is not innocent.
_MOST_ATTEMPTS: Final = 2
_INTERNAL: Final[int] = grpc.StatusCode.INTERNAL.value[0]


class PendingRequest(Protocol):
    """An admitted request, whatever door it came through."""

    body: bytes
    rows: int
    shape_key: Hashable
    enqueued_ns: int
    attempts: int
    open: bool

    def answer(self, message: bytes) -> None:
        """Give the client a serialized ModelInferResponse."""
        ...

    def fail(self, code: int, details: str) -> None:
        """Give the client an error."""
        ...


@dataclass(frozen=True, slots=True)
class Execution:
    """A batch on its way to an instance, and when it left the queue."""

    batch: tuple[PendingRequest, ...]
    dispatched_ns: int

    @property
    def rows(self) -> int:
        """Of all its requests."""
        return sum(request.rows for request in self.batch)

    def durations(
        self, replies: Iterator[Reply], now_ns: int
    ) -> Iterator[tuple[int, int]]:
        """Yield how long each request that succeeded waited, and took in all; ns."""
        for request, (response, _) in zip(self.batch, replies, strict=True):
            if response is not None:
                began_ns = request.enqueued_ns
                yield self.dispatched_ns - began_ns, now_ns - began_ns


class Instance(Protocol):
    """A model instance that takes one batch at a time."""

    @property
    def worker(self) -> str:
        """Whose it is."""
        ...

    def execute(self, execution: Execution) -> None:
        """Begin an execution; ``Scheduler.completed`` tells of its end."""
        ...

    def close(self) -> None:
        """Part from the instance: it serves nobody any more."""
        ...


def refuse(request: PendingRequest, error: ServingError) -> None:
    """Answer ``request`` with ``error``."""
    code, details = status_of(error)
    request.fail(code.value[0], details)


def policy_of(route: Route) -> BatchPolicy:
    """Return how requests for ``route`` are batched, by its configuration."""
    config = route.config
    batching = config.dynamic_batching
    if batching is None:
        return BatchPolicy(max_batch_size=max(config.max_batch_size, 1), max_requests=1)
    return BatchPolicy(
        max_batch_size=max(config.max_batch_size, 1),
        preferred_batch_sizes=batching.preferred_batch_sizes,
        max_queue_delay_ns=batching.max_queue_delay_ns,
    )


class Scheduler:
    """Queue and instances of one generation."""

    __slots__ = (
        "_batcher",
        "_idle",
        "_instances",
        "_now_ns",
        "_on_quiet",
        "_reactor",
        "_timed",
        "_timer",
        "dispatch",
        "route",
        "statistics",
    )

    def __init__(
        self,
        route: Route,
        reactor: Reactor,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Start with no request and no instance."""
        self._now_ns = now_ns
        self.route = route
        self.statistics = ModelStatistics()
        self._reactor = reactor
        self._batcher: Batcher[PendingRequest] = Batcher(policy_of(route))
        self._instances: set[Instance] = set()
        self._idle: list[Instance] = []
        self._timer: Timer | None = None
        # Whose clients asked for the times of their requests; few, if any.
        self._timed: set[PendingRequest] = set()
        self._on_quiet: Callable[[], None] | None = None
        # One bound method for all, so that the reactor can tell it is known.
        self.dispatch = self._dispatch

    @property
    def has_instance(self) -> bool:
        """Whether anyone is there to execute a batch."""
        return bool(self._instances)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._batcher)

    @property
    def is_quiet(self) -> bool:
        """Whether no request waits and none is being executed."""
        return not len(self._batcher) and len(self._idle) == len(self._instances)

    def enqueue(self, request: PendingRequest) -> None:
        """Take an admitted request."""
        batcher = self._batcher
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
        self._batcher.remove(request)
        self._timed.discard(request)
        waited_ns = self._now_ns() - request.enqueued_ns
        self.statistics.failed(waited_ns, FailureReason.CANCELED)

    def attach(self, instance: Instance) -> None:
        """Take an instance into service."""
        self._instances.add(instance)
        self._idle.append(instance)
        self._dispatch()

    def detach(
        self, instance: Instance, unanswered: tuple[PendingRequest, ...]
    ) -> None:
        """Let an instance go; what it had not answered runs elsewhere, once."""
        self._instances.discard(instance)
        if instance in self._idle:
            self._idle.remove(instance)
        self._retry(unanswered)
        self._dispatch()

    def completed(
        self, instance: Instance, execution: Execution, message: bytes
    ) -> None:
        """Hand out the answers, after the next batch has been sent."""
        self._idle.append(instance)
        if len(self._batcher):
            self._dispatch()
        now_ns = self._now_ns()
        batch = execution.batch
        try:
            timing, start = timing_of(message)
            replies = replies_of(message, start)
            if self._timed:
                replies = self._with_times(replies, execution, timing, instance)
            batch_rows = rows = answered = success_ns = 0
            for request, (response, error) in zip(batch, replies, strict=True):
                batch_rows += request.rows
                if not request.open:
                    # Its client left: counted then.
                    continue
                elapsed_ns = now_ns - request.enqueued_ns
                if response is not None:
                    request.answer(response)
                    rows += request.rows
                    answered += 1
                    success_ns += elapsed_ns
                elif error is not None:
                    request.fail(error.code or _INTERNAL, error.message)
                    self.statistics.failed(elapsed_ns, FailureReason.BACKEND)
        except (WireFormatError, ValueError, IndexError):
            _log.exception("a worker's answer could not be read", **self._names())
            self._fail_all(batch, BackendError("the worker's answer could not be read"))
            return
        statistics = self.statistics
        if statistics.latencies is not None and answered:
            durations = execution.durations(replies_of(message, start), now_ns)
            statistics.took(statistics.latencies, durations, timing)
        statistics.executed(
            batch_rows=batch_rows,
            rows=rows,
            requests=answered,
            queue_ns=success_ns - answered * (now_ns - execution.dispatched_ns),
            success_ns=success_ns,
            timing=timing,
            at_ms=time.time_ns() // 1_000_000,
        )
        if self._on_quiet is not None:
            self._check_quiet()

    def when_quiet(self, callback: Callable[[], None]) -> None:
        """Call back, once, as soon as everyone here has been answered."""
        self._on_quiet = callback
        self._check_quiet()

    def refuse_all(self, error: ServingError) -> None:
        """Answer everyone who waits with ``error``."""
        self._fail_all(self._batcher.drain(), error)

    def close(self) -> None:
        """Refuse everyone who waits and part from the instances."""
        self.refuse_all(StoppingError("the server is shutting down"))
        for instance in tuple(self._instances):
            instance.close()

    def _with_times(
        self,
        replies: Iterator[Reply],
        execution: Execution,
        timing: tuple[int, int, int],
        instance: Instance,
    ) -> Iterator[Reply]:
        """Yield ``replies``, those with their times whose clients asked for them."""
        for request, (response, error) in zip(execution.batch, replies, strict=True):
            if response is None or request not in self._timed:
                yield response, error
                continue
            suffix = timing_suffix(
                queue_ns=execution.dispatched_ns - request.enqueued_ns,
                batch_size=execution.rows,
                timing=timing,
                retries=request.attempts,
                worker=instance.worker,
                version=self.route.version_text,
            )
            yield response + suffix, None
        self._timed.difference_update(execution.batch)

    def _dispatch(self) -> None:
        idle = self._idle
        while idle:
            now_ns = self._now_ns()
            step = self._batcher.step(now_ns)
            if step.batch:
                idle.pop().execute(Execution(step.batch, now_ns))
                continue
            if step.wake_ns is not None:
                self._wake_at(step.wake_ns)
            return

    def _check_quiet(self) -> None:
        if self._on_quiet is not None and self.is_quiet:
            callback, self._on_quiet = self._on_quiet, None
            callback()

    def _wake_at(self, when_ns: int) -> None:
        timer = self._timer
        if timer is not None and timer.callback is not None:
            if timer.when_ns == when_ns:
                return
            timer.cancel()
        self._timer = self._reactor.call_at(when_ns, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._dispatch()

    def _retry(self, unanswered: tuple[PendingRequest, ...]) -> None:
        again = []
        for request in unanswered:
            request.attempts += 1
            if not request.open:
                continue
            if request.attempts < _MOST_ATTEMPTS:
                again.append(request)
            else:
                text = f"the worker died while it executed '{self.route.model}', twice"
                self._fail_all((request,), ModelNotReadyError(text))
        if again:
            self.statistics.retried(len(again))
            _log.warning(
                "requests of a lost instance run again",
                requests=len(again),
                **self._names(),
            )
            self._batcher.put_back(tuple(again))

    def _fail_all(
        self, requests: tuple[PendingRequest, ...], error: ServingError
    ) -> None:
        now_ns = self._now_ns()
        self._timed.difference_update(requests)
        for request in requests:
            if request.open:
                refuse(request, error)
                self.statistics.failed(
                    now_ns - request.enqueued_ns, failure_reason(error)
                )

    def _names(self) -> dict[str, object]:
        return {"model": self.route.model, "version": self.route.version}
