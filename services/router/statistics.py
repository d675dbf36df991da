"""What a router counts of one model version, with Triton's meanings. Pure.

Every duration of a batch counts in full for each of its requests; only the queue
is each request's own. What was counted is taken out as increments, so that
nothing is counted twice whoever adds them up. Source: Triton's statistics extension.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from services.core.errors import (
    BackendError,
    DeadlineExceededError,
    OverloadedError,
    RequestCancelledError,
    ServingError,
)
from services.core.latency_buckets import bucket_of
from services.core.statistics_fields import (
    COMPUTE,
    EXECUTION_COUNT,
    FIRST_RESPONSE_BOUNDS_MS,
    FIRST_RESPONSE_SUM_FIELD,
    INFERENCE_COUNT,
    LOST_EXECUTIONS,
    QUARANTINED,
    RETRIES,
    FailureReason,
    Phase,
    ResponsePhase,
    ShadowOutcome,
    batch_count_field,
    batch_ns_field,
    count_field,
    failure_field,
    first_response_field,
    ns_field,
    response_field,
    shadow_field,
)


@dataclass(slots=True)
class Duration:
    """How often, and how long in all."""

    count: int = 0
    ns: int = 0

    def add(self, count: int, ns: int) -> None:
        """Count ``count`` events that took ``ns`` together."""
        self.count += count
        self.ns += ns


@dataclass(slots=True)
class ComputeDurations:
    """The three phases of an execution."""

    count: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def add(self, count: int, timing: tuple[int, int, int]) -> None:
        """Count ``timing`` (input, infer, output; ns) for each of ``count``."""
        input_ns, infer_ns, output_ns = timing
        self.count += count
        self.input_ns += count * input_ns
        self.infer_ns += count * infer_ns
        self.output_ns += count * output_ns

    @property
    def ns(self) -> tuple[int, int, int]:
        """The three sums, in the order of the phases."""
        return self.input_ns, self.infer_ns, self.output_ns


@dataclass(slots=True)
class Latencies:
    """How many requests took how long in one phase, by buckets."""

    counts: Counter[int] = field(default_factory=Counter)
    sum_ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        """Count ``count`` requests that took ``ns`` each."""
        self.counts[bucket_of(ns)] += count
        self.sum_ns += count * ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Increments:
    """What was counted of one version since it was last asked for.

    Attributes:
        last_inference_ms: Since 1970; 0 if there was none.
        counts: By the names of ``services.core.statistics_fields``; none is 0.
        latencies: By phase, where distributions are wanted.
    """

    last_inference_ms: int
    counts: Mapping[str, int]
    latencies: Mapping[Phase, Latencies] = field(default_factory=dict)


def failure_reason(error: ServingError) -> FailureReason:
    """Return under which of Triton's reasons ``error`` is counted."""
    match error:
        case OverloadedError() | DeadlineExceededError():
            return FailureReason.REJECTED
        case RequestCancelledError():
            return FailureReason.CANCELED
        case BackendError():
            return FailureReason.BACKEND
        case _:
            return FailureReason.OTHER


@dataclass(slots=True)
class ModelStatistics:
    """Counters of one model version in one router, since they were last taken.

    ``latencies`` is None unless somebody wants distributions: they cost a second
    pass over each batch. ``first_response_bounds_ms`` are the upper bounds of that
    histogram, ascending, without infinity.
    """

    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    retries: int = 0
    success: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute: ComputeDurations = field(default_factory=ComputeDurations)
    batches: dict[int, ComputeDurations] = field(default_factory=dict)
    latencies: dict[Phase, Latencies] | None = None
    first_response_bounds_ms: Sequence[float] = FIRST_RESPONSE_BOUNDS_MS
    # All that is counted seldom, by field.
    others: Counter[str] = field(default_factory=Counter)

    def executed(
        self,
        *,
        batch_rows: int,
        rows: int,
        requests: int,
        queue_ns: int,
        success_ns: int,
        timing: tuple[int, int, int],
        at_ms: int,
    ) -> None:
        """Count one execution.

        Args:
            batch_rows: The executed batch size.
            rows: Those of the requests that succeeded.
            requests: How many succeeded.
            queue_ns: Their waiting, summed.
            success_ns: Their whole time in the router, summed.
            timing: What the worker measured: input, infer, output; ns.
            at_ms: Now, since 1970.
        """
        self.execution_count += 1
        batch = self.batches.get(batch_rows)
        if batch is None:
            batch = self.batches[batch_rows] = ComputeDurations()
        batch.add(1, timing)
        if requests:
            self.last_inference_ms = at_ms
            self.inference_count += rows
            self.success.add(requests, success_ns)
            self.queue.add(requests, max(0, queue_ns))
            self.compute.add(requests, timing)

    def failed(self, ns: int, reason: FailureReason = FailureReason.OTHER) -> None:
        """Count one request that ended in an error after ``ns``."""
        others = self.others
        others[count_field(Phase.FAIL)] += 1
        others[ns_field(Phase.FAIL)] += max(ns, 0)
        others[failure_field(reason)] += 1

    def retried(self, requests: int) -> None:
        """Count requests that run again because their worker was lost."""
        self.retries += requests

    def lost(self, *, quarantined: int) -> None:
        """Count a batch whose worker was lost, and who was found guilty of it."""
        self.others[LOST_EXECUTIONS] += 1
        if quarantined:
            self.others[QUARANTINED] += quarantined

    def shadowed(self, outcome: ShadowOutcome) -> None:
        """Count one copy of a request to another version."""
        self.others[shadow_field(outcome)] += 1

    def took(
        self,
        latencies: dict[Phase, Latencies],
        durations: Iterable[tuple[int, int]],
        timing: tuple[int, int, int],
    ) -> None:
        """Add the requests of one batch to the distributions.

        Args:
            latencies: ``self.latencies``, which is not None.
            durations: Of each request that succeeded: in the queue, and in all; ns.
            timing: What the worker measured: input, infer, output; ns.
        """
        count = 0
        for queue_ns, request_ns in durations:
            count += 1
            latencies[Phase.QUEUE].add(max(queue_ns, 0))
            latencies[Phase.SUCCESS].add(max(request_ns, 0))
        if count:
            for phase, ns in zip(COMPUTE, timing, strict=True):
                latencies[phase].add(ns, count)

    def answered_from_cache(
        self, *, lookup_ns: int, queue_ns: int, success_ns: int, at_ms: int
    ) -> None:
        """Count one request that the response cache answered: no inference."""
        self.last_inference_ms = at_ms
        self.success.add(1, success_ns)
        self.queue.add(1, max(0, queue_ns))
        self.others[count_field(Phase.CACHE_HIT)] += 1
        self.others[ns_field(Phase.CACHE_HIT)] += max(lookup_ns, 0)
        if self.latencies is not None:
            self.latencies[Phase.QUEUE].add(max(queue_ns, 0))
            self.latencies[Phase.SUCCESS].add(max(success_ns, 0))
            self._took_in_cache(self.latencies, Phase.CACHE_HIT, lookup_ns)

    def missed_cache(self, ns: int) -> None:
        """Count one request that the cache had no answer to, and its ``ns`` there."""
        self.others[count_field(Phase.CACHE_MISS)] += 1
        self.others[ns_field(Phase.CACHE_MISS)] += max(ns, 0)
        if self.latencies is not None:
            self._took_in_cache(self.latencies, Phase.CACHE_MISS, ns)

    def _took_in_cache(
        self, latencies: dict[Phase, Latencies], phase: Phase, ns: int
    ) -> None:
        latencies.setdefault(phase, Latencies()).add(max(ns, 0))

    def streamed(
        self, *, rows: int, queue_ns: int, success_ns: int, at_ms: int
    ) -> None:
        """Count one request of a decoupled model that had its last response."""
        self.last_inference_ms = at_ms
        self.inference_count += rows
        self.success.add(1, success_ns)
        self.queue.add(1, max(0, queue_ns))
        if self.latencies is not None:
            self.latencies[Phase.SUCCESS].add(max(0, success_ns))
            self.latencies[Phase.QUEUE].add(max(0, queue_ns))

    def computed(self, timing: tuple[int, int, int]) -> None:
        """Count what the execution of such a request took: input, infer, output; ns."""
        self.compute.add(1, timing)
        if self.latencies is not None:
            for phase, ns in zip(COMPUTE, timing, strict=True):
                self.latencies[phase].add(ns)

    def responded(self, index: int, durations: Mapping[ResponsePhase, int]) -> None:
        """Count the ``index``-th response to one request of a decoupled model.

        Args:
            index: From 0.
            durations: What it was (success, fail, ...) and took, by phase; ns.
        """
        for phase, ns in durations.items():
            self.others[response_field(index, phase, "count")] += 1
            self.others[response_field(index, phase, "ns")] += max(ns, 0)

    def first_response(self, ns: int) -> None:
        """Count the time to the first response of one request, since its arrival."""
        bounds_ms = self.first_response_bounds_ms
        at = bisect_left(bounds_ms, ns / 1e6)
        bound = bounds_ms[at] if at < len(bounds_ms) else float("inf")
        self.others[first_response_field(bound)] += 1
        self.others[FIRST_RESPONSE_SUM_FIELD] += max(ns, 0) // 1000

    def distribute(self, *, is_wanted: bool) -> None:
        """Begin or cease to count distributions."""
        if is_wanted != (self.latencies is not None):
            self.latencies = _no_latencies() if is_wanted else None

    def take(self) -> Increments | None:
        """Return what was counted, and begin anew; None if nothing was."""
        counted = self.execution_count or self.success.count or self.retries
        if not (counted or self.others):
            return None
        counts = dict(self.others)
        counts[RETRIES] = self.retries
        counts[INFERENCE_COUNT] = self.inference_count
        counts[EXECUTION_COUNT] = self.execution_count
        for phase, duration in {
            Phase.SUCCESS: self.success,
            Phase.QUEUE: self.queue,
        }.items():
            counts[count_field(phase)] = duration.count
            counts[ns_field(phase)] = duration.ns
        for phase, ns in zip(COMPUTE, self.compute.ns, strict=True):
            counts[count_field(phase)] = self.compute.count
            counts[ns_field(phase)] = ns
        for rows, batch in self.batches.items():
            counts[batch_count_field(rows)] = batch.count
            for phase, ns in zip(COMPUTE, batch.ns, strict=True):
                counts[batch_ns_field(rows, phase)] = ns
        taken = Increments(
            last_inference_ms=self.last_inference_ms,
            counts={name: count for name, count in counts.items() if count},
            latencies=self.latencies or {},
        )
        self._reset()
        return taken

    def _reset(self) -> None:
        self.last_inference_ms = 0
        self.inference_count = self.execution_count = self.retries = 0
        self.success = Duration()
        self.queue = Duration()
        self.compute = ComputeDurations()
        self.batches = {}
        self.others = Counter()
        if self.latencies is not None:
            self.latencies = _no_latencies()


def _no_latencies() -> dict[Phase, Latencies]:
    return {phase: Latencies() for phase in (Phase.SUCCESS, Phase.QUEUE, *COMPUTE)}
