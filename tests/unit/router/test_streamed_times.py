"""What is counted of the times of decoupled requests, whenever they end."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from protos import worker_pb2
from services.core.errors import ModelNotReadyError
from services.core.statistics_fields import (
    COMPUTE,
    FailureReason,
    Phase,
    failure_field,
)
from services.router.pending_request import Execution
from services.router.statistics import ModelStatistics
from services.router.streamed_replies import StreamedReplies, clipped
from tests.unit.router.stage import PuppetRequest

TIMING = (10, 100, 20)


@dataclass(eq=False)
class StreamingRequest(PuppetRequest):
    withdraw: Callable[[], None] | None = None

    def respond(self, message: bytes | None, *, final: bool) -> None:
        self.outcome.append(message)
        self.open = not final

    def respond_with_error(self, code: int, details: str) -> None:
        self.outcome.append((code, details))


@dataclass(eq=False)
class HeldRequest(StreamingRequest):
    holds: int = 0

    def hold(self) -> None:
        self.holds += 1

    def release(self) -> None:
        self.holds -= 1


class Instance:
    """One instance's requests; batches leave the queue at 1000 ns."""

    def __init__(self) -> None:
        self.counted = ModelStatistics()
        self.counted.distribute(is_wanted=True)
        self.replies = StreamedReplies(self.counted, lambda: 3000)

    def begin(self, count: int = 1) -> list[HeldRequest]:
        batch = [HeldRequest(str(n), enqueued_ns=400) for n in range(count)]
        self.replies.began(Execution(tuple(batch), 1000), lambda _: None)
        return batch

    def failures(self, reason: FailureReason) -> tuple[int, int, int]:
        """Return all failures, how long they took, and those for one reason."""
        others = self.counted.others
        return others["fail.count"], others["fail.ns"], others[failure_field(reason)]

    def respond(
        self, request: int, at_ns: int, *, batch: int = 0, final: bool = True
    ) -> None:
        streamed = worker_pb2.StreamedReply(
            batch=batch, request=request, final=final, compute_output_ns=7
        )
        streamed.reply.response = b"r"
        message = worker_pb2.BatchResponse(streamed=[streamed])
        self.replies.take(message.SerializeToString(), at_ns, 1)

    def end(self) -> None:
        timing = worker_pb2.BatchTiming(
            compute_input_ns=TIMING[0],
            compute_infer_ns=TIMING[1],
            compute_output_ns=TIMING[2],
        )
        message = worker_pb2.BatchResponse(timing=timing)
        self.replies.ended(message.SerializeToString())

    @property
    def computed(self) -> tuple[int, tuple[int, int, int]]:
        return self.counted.compute.count, self.counted.compute.ns


@pytest.fixture
def instance() -> Instance:
    return Instance()


def test_a_request_that_outlives_its_execution_took_all_of_it(
    instance: Instance,
) -> None:
    instance.begin()
    instance.end()
    assert instance.computed == (0, (0, 0, 0))
    instance.respond(0, 9000)
    assert instance.computed == (1, TIMING)
    assert instance.counted.success.ns == 8600


def test_one_that_is_done_before_took_what_had_passed_by_then(
    instance: Instance,
) -> None:
    instance.begin(2)
    instance.respond(0, 1060)
    instance.respond(1, 1115)
    assert instance.computed == (0, (0, 0, 0))
    instance.end()
    assert instance.computed == (2, (20, 150, 5))
    counted = instance.counted
    assert counted.success.ns == counted.queue.ns + sum(counted.compute.ns)


def test_one_whose_client_left_counts_no_times(instance: Instance) -> None:
    (request,) = instance.begin()
    assert request.withdraw is not None
    request.open = False
    request.withdraw()
    instance.end()
    assert instance.computed == (0, (0, 0, 0))


def test_one_whose_client_left_while_it_was_executed_failed_once(
    instance: Instance,
) -> None:
    (request,) = instance.begin()
    instance.respond(0, 1500, final=False)
    assert request.withdraw is not None
    withdraw = request.withdraw
    request.open = False
    withdraw()
    withdraw()
    instance.respond(0, 2000)
    instance.end()
    assert instance.failures(FailureReason.CANCELED) == (1, 2600, 1)
    assert instance.counted.others["response.1.cancel.ns"] == 1500
    assert instance.counted.success.count == 0


def test_one_that_is_lost_between_its_responses_failed(instance: Instance) -> None:
    first, second = instance.begin(2)
    instance.respond(0, 1500, final=False)
    instance.replies.lost(ModelNotReadyError("lost"))
    assert first.outcome == [b"r", (14, "lost")]
    assert second.outcome == []  # it may run again
    assert instance.failures(FailureReason.OTHER) == (1, 2600, 1)


def test_one_whose_door_takes_one_response_only_failed(instance: Instance) -> None:
    request = PuppetRequest("step", enqueued_ns=400)
    instance.replies.began(Execution((request,), 1000), lambda _: None)
    assert not request.open
    assert instance.failures(FailureReason.OTHER) == (1, 2600, 1)


@pytest.mark.parametrize("is_lost", [False, True])
def test_who_wants_to_hears_of_the_end_of_the_execution(
    instance: Instance, *, is_lost: bool
) -> None:
    early, late = instance.begin(2)
    instance.respond(0, 1500)
    assert (early.holds, late.holds) == (1, 0)
    if is_lost:
        instance.replies.lost(ModelNotReadyError("lost"))
    else:
        instance.end()
        instance.respond(1, 9000)
    assert (early.holds, late.holds) == (0, 0)


def test_each_batch_has_the_times_of_its_own_execution(instance: Instance) -> None:
    instance.begin()
    instance.begin()
    instance.respond(0, 1005, batch=1)
    instance.end()
    assert instance.computed == (0, (0, 0, 0))
    instance.end()
    assert instance.computed == (1, (5, 0, 0))


def test_an_execution_whose_end_cannot_be_read_has_no_times(
    instance: Instance,
) -> None:
    instance.begin()
    instance.respond(0, 1050)
    instance.replies.ended(b"\x0a\x1b\x00")
    assert instance.computed == (1, (0, 0, 0))


def test_the_encoding_of_a_response_is_told_apart_from_its_making(
    instance: Instance,
) -> None:
    instance.begin()
    instance.respond(0, 1050, final=False)
    instance.respond(0, 1052)
    counted = instance.counted.others
    first = (counted["response.0.compute_infer.ns"],)
    assert (*first, counted["response.0.compute_output.ns"]) == (43, 7)
    second = (counted["response.1.compute_infer.ns"],)
    assert (*second, counted["response.1.compute_output.ns"]) == (0, 2)
    assert counted["response.0.success.ns"] == 50


def test_their_phases_are_in_the_distributions_too(instance: Instance) -> None:
    instance.begin()
    instance.end()
    instance.respond(0, 9000)
    latencies = instance.counted.latencies
    assert latencies is not None
    assert [latencies[phase].sum_ns for phase in COMPUTE] == list(TIMING)
    assert latencies[Phase.SUCCESS].sum_ns == 8600


@pytest.mark.parametrize(
    ("span_ns", "left"),
    [
        (0, (0, 0, 0)),
        (4, (4, 0, 0)),
        (60, (10, 50, 0)),
        (115, (10, 100, 5)),
        (500, TIMING),
    ],
)
def test_of_an_execution_counts_what_lies_within_the_span(
    span_ns: int, left: tuple[int, int, int]
) -> None:
    assert clipped(TIMING, span_ns) == left
