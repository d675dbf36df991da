"""The answers of an execution: handed out, and counted. For every kind of scheduler."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import grpc

from services.core.statistics_fields import FailureReason
from services.router.batch_response import (
    RESCHEDULED,
    Reply,
    Timing,
    replies_of,
    timing_of,
)
from services.router.pending_request import Execution, PendingRequest
from services.router.statistics import ModelStatistics

_INTERNAL: Final[int] = grpc.StatusCode.INTERNAL.value[0]
_RESOURCE_EXHAUSTED: Final[int] = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]

ReplyEditor = Callable[[Iterator[Reply], Timing], Iterator[Reply]]
"""Adds to replies what their clients asked for, given what the worker measured."""


class Unanswered(NamedTuple):
    """Requests of an execution that have to run again.

    Attributes:
        requests: None of them was answered.
        exhausted: Why, if they were too many for their device together; "": the model
            wants them back.
    """

    requests: Sequence[PendingRequest] = ()
    exhausted: str = ""


_NOBODY: Final = Unanswered()
UNREADABLE_TEXT: Final = "the worker's answer could not be read"
"""What everyone is told if it could not be handed out."""


def hand_out(  # noqa: C901 - hot: one function
    execution: Execution,
    message: bytes,
    statistics: ModelStatistics,
    now_ns: int,
    *,
    edit: ReplyEditor | None = None,
    is_iterative: bool = False,
    may_run_in_parts: bool = False,
) -> Unanswered:
    """Give each client of a batch its answer.

    Args:
        execution: The batch.
        message: A serialized BatchResponse.
        statistics: To count in.
        now_ns: Monotonic time.
        edit: What is to be done to the replies; None: nothing.
        is_iterative: Whether the model may want requests back.
        may_run_in_parts: Whether a batch too large for its device may be divided; if
            not, its requests are answered with the error.

    Raises:
        WireFormatError: the message is no BatchResponse.
        ValueError: or not one to this batch.
        IndexError: or cut off. Whoever had no error of his own is not answered then.
    """
    batch_rows = rows = answered = success_ns = 0
    responses: list[tuple[PendingRequest, bytes]] = []
    unanswered: list[PendingRequest] = []
    exhausted = ""
    timing, start = timing_of(message)
    replies = replies_of(message, start)
    if edit is not None:
        replies = edit(replies, timing)
    for request, (response, error) in zip(execution.batch, replies, strict=True):
        batch_rows += request.rows
        if not request.open:
            continue  # answered by a stream, or its client left: counted then
        if response is not None:
            responses.append((request, response))
        elif error is None:
            continue  # will be answered by a stream, and counted then
        elif is_iterative and error is RESCHEDULED:
            unanswered.append(request)
            continue
        elif may_run_in_parts and error.code == _RESOURCE_EXHAUSTED:
            unanswered.append(request)
            exhausted = error.message
            continue
        else:
            request.fail(error.code or _INTERNAL, error.message)
            if not error.is_answer:
                elapsed_ns = now_ns - request.enqueued_ns
                statistics.failed(elapsed_ns, FailureReason.BACKEND)
                continue
        # An error too, if it is the model's own: the execution succeeded.
        rows += request.rows
        answered += 1
        success_ns += now_ns - request.enqueued_ns
    # In a loop of its own: each answer pushes other code out of the caches.
    for request, response in responses:
        request.answer(response)
    latencies = statistics.latencies
    if latencies is not None and answered:
        durations = execution.durations(replies_of(message, start), now_ns)
        statistics.took(latencies, durations, timing)
    statistics.executed(
        batch_rows=batch_rows,
        rows=rows,
        requests=answered,
        queue_ns=success_ns - answered * (now_ns - execution.dispatched_ns),
        success_ns=success_ns,
        timing=timing,
        at_ms=time.time_ns() // 1_000_000,
    )
    return Unanswered(unanswered, exhausted) if unanswered else _NOBODY
