"""The answers of an execution of sequences: handed out, and counted."""

import time
from typing import Final

import grpc

from services.core.statistics_fields import FailureReason
from services.router.batch_response import RESCHEDULED, replies_of, timing_of
from services.router.pending_request import Execution, PendingRequest
from services.router.statistics import ModelStatistics

_INTERNAL: Final[int] = grpc.StatusCode.INTERNAL.value[0]


def hand_out(
    execution: Execution,
    message: bytes,
    statistics: ModelStatistics,
    now_ns: int,
    *,
    is_iterative: bool,
) -> list[PendingRequest]:
    """Give each client of a batch its answer.

    Args:
        execution: The batch.
        message: A serialized BatchResponse.
        statistics: To count in.
        now_ns: Monotonic time.
        is_iterative: Whether the model may want requests back.

    Returns:
        The requests that the model wants back; they are not answered.

    Raises:
        WireFormatError: the message is no BatchResponse.
        ValueError: or not one to this batch.
        IndexError: or cut off.
    """
    rows = answered = streamed = success_ns = 0
    again: list[PendingRequest] = []
    timing, start = timing_of(message)
    replies = replies_of(message, start)
    for request, (response, error) in zip(execution.batch, replies, strict=True):
        if not request.open:
            continue
        if is_iterative and error is RESCHEDULED:
            again.append(request)
            continue
        elapsed_ns = now_ns - request.enqueued_ns
        if response is not None:
            request.answer(response)
        elif error is not None:
            request.fail(error.code or _INTERNAL, error.message)
            if not error.is_answer:
                statistics.failed(elapsed_ns, FailureReason.BACKEND)
                continue
        else:
            streamed += 1
            continue
        # An error too, if it is the model's own: the execution succeeded.
        rows += request.rows
        answered += 1
        success_ns += elapsed_ns
    latencies = statistics.latencies
    if latencies is not None and answered:
        durations = execution.durations(replies_of(message, start), now_ns)
        statistics.took(latencies, durations, timing)
    statistics.executed(
        batch_rows=execution.rows,
        rows=rows,
        requests=answered,
        queue_ns=success_ns - answered * (now_ns - execution.dispatched_ns),
        success_ns=success_ns,
        timing=timing,
        at_ms=time.time_ns() // 1_000_000,
    )
    if streamed:
        statistics.compute.add(streamed, timing)
    return again
