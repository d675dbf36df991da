"""What counting costs: answers of executions, handed out with and without statistics.

And what tracing costs a request that is not sampled.

In this very process, without clients and workers: no other process and no other part of
the router blurs the difference, which is some tenths of a microsecond a request.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protos import worker_pb2
from services.router.execution_answers import hand_out
from services.router.no_statistics import NoStatistics
from services.router.pending_request import Execution, PendingRequest, Taker
from services.router.statistics import ModelStatistics
from services.router.trace_sampler import SampleCounter, TraceScope
from services.router.traced_takers import TracedTaker

# What a router hands out between two reports, at some 5,000 requests a second.
REQUESTS: Final = 1_000
ROUNDS: Final = 200


@dataclass(eq=False, slots=True)
class Request:
    """One whose client takes any answer."""

    rows: int = 1
    shape_key: object = ()
    enqueued_ns: int = 0
    priority: int = 0
    timeout_ns: int = 0
    attempts: int = 0
    body: bytes = b""
    open: bool = True

    def answer(self, message: bytes) -> None:
        """Take it."""

    def fail(self, code: int, details: str) -> None:
        """Take it."""


class Scheduler:
    """Takes everything."""

    def enqueue(self, request: PendingRequest) -> None:
        """Take it."""

    def time(self, request: PendingRequest) -> None:
        """Take it."""

    def forget(self, request: PendingRequest) -> None:
        """Forget it."""


def counting_us(batch: int) -> float:
    """Return what statistics cost for each request, in microseconds.

    That is counting, and taking out what was counted for a report to control.

    Args:
        batch: So many requests share an execution.
    """
    replies = [worker_pb2.Reply(response=bytes(160))] * batch
    timing = worker_pb2.BatchTiming(
        compute_input_ns=1, compute_infer_ns=1, compute_output_ns=1
    )
    message = worker_pb2.BatchResponse(timing=timing, reply=replies)
    execution = Execution(tuple(Request() for _ in range(batch)), dispatched_ns=1)
    answer = message.SerializeToString()
    on = _repeated(execution, answer, ModelStatistics())
    off = _repeated(execution, answer, NoStatistics())
    differences = [_cpu_ns(on) - _cpu_ns(off) for _ in range(ROUNDS)]
    requests = REQUESTS // batch * batch
    return statistics.median(differences) / requests / 1000


def unsampled_us() -> float:
    """Return what a request pays that is not sampled while others are, in us."""
    scope = TraceScope(session=1, rate=1_000_000_000)
    counter = SampleCounter(scope=scope, until=scope.rate)
    request, scheduler = Request(), Scheduler()
    traced = TracedTaker(scheduler, lambda _, __: None, counter)

    def enqueue(taker: Taker) -> Callable[[], None]:
        def run() -> None:
            for _ in range(REQUESTS):
                taker.enqueue(request)

        return run

    on, off = enqueue(traced), enqueue(scheduler)
    differences = [_cpu_ns(on) - _cpu_ns(off) for _ in range(ROUNDS)]
    return statistics.median(differences) / REQUESTS / 1000


def _repeated(
    execution: Execution, message: bytes, counters: ModelStatistics
) -> Callable[[], None]:
    def run() -> None:
        for _ in range(REQUESTS // len(execution.batch)):
            hand_out(execution, message, counters, 2)
        counters.take()

    return run


def _cpu_ns(run: Callable[[], None]) -> int:
    began_ns = time.thread_time_ns()
    run()
    return time.thread_time_ns() - began_ns
