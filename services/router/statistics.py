"""What a router counts of one model version, with Triton's meanings.

Every duration of a batch counts in full for each of its requests; only the queue
is each request's own. Source: Triton's statistics extension.
"""

from dataclasses import dataclass, field


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

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)

    def add(self, count: int, timing: tuple[int, int, int]) -> None:
        """Count ``timing`` (input, infer, output; ns) for each of ``count``."""
        self.compute_input.add(count, count * timing[0])
        self.compute_infer.add(count, count * timing[1])
        self.compute_output.add(count, count * timing[2])


@dataclass(slots=True)
class ModelStatistics:
    """Counters of one generation in one router, since it was first served."""

    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute: ComputeDurations = field(default_factory=ComputeDurations)
    batches: dict[int, ComputeDurations] = field(default_factory=dict)

    def executed(
        self,
        *,
        rows: int,
        requests: int,
        queue_ns: int,
        success_ns: int,
        timing: tuple[int, int, int],
    ) -> None:
        """Count one execution of ``requests`` requests that succeeded.

        Args:
            rows: Rows of all of them: the executed batch size.
            requests: How many they were.
            queue_ns: Their waiting, summed.
            success_ns: Their whole time in the router, summed.
            timing: What the worker measured: input, infer, output; ns.
        """
        self.inference_count += rows
        self.execution_count += 1
        self.success.add(requests, success_ns)
        self.queue.add(requests, queue_ns)
        self.compute.add(requests, timing)
        self.batches.setdefault(rows, ComputeDurations()).add(1, timing)

    def failed(self, ns: int) -> None:
        """Count one request that ended in an error after ``ns``."""
        self.fail.add(1, ns)
