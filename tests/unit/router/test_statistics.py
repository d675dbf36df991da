"""What a router counts: with Triton's meanings, and each thing once."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import inference_pb2 as pb
from services.core.completion_queue import Reactor
from services.core.errors import (
    BackendError,
    DeadlineExceededError,
    ModelNotReadyError,
    OverloadedError,
    RequestCancelledError,
    ServingError,
    StoppingError,
)
from services.core.latency_buckets import bucket_of
from services.core.model_config import MetricControl
from services.core.statistics_fields import FailureReason, Phase, ResponsePhase
from services.router.inference import Inference
from services.router.readiness import Readiness
from services.router.servicer import SERVICE, InferenceServicer
from services.router.statistics import Increments, ModelStatistics, failure_reason
from services.router.statistics_ledger import StatisticsLedger
from tests.unit.router.routes import add_sub, route

MS = 1_000_000


def execution(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - keyword arguments
    standard = {
        "batch_rows": 4,
        "rows": 4,
        "requests": 2,
        "queue_ns": 10,
        "success_ns": 100,
        "timing": (1, 20, 3),
        "at_ms": 77,
    }
    return {**standard, **fields}


def taken(counted: ModelStatistics) -> Increments:
    increments = counted.take()
    assert increments is not None
    return increments


def test_an_execution_counts_rows_once_and_durations_for_each_request() -> None:
    counted = ModelStatistics()
    counted.executed(**execution())
    increments = taken(counted)
    assert increments.last_inference_ms == 77
    assert increments.counts == {
        "inference_count": 4,
        "execution_count": 1,
        "success.count": 2,
        "success.ns": 100,
        "queue.count": 2,
        "queue.ns": 10,
        "compute_input.count": 2,
        "compute_input.ns": 2,
        "compute_infer.count": 2,
        "compute_infer.ns": 40,
        "compute_output.count": 2,
        "compute_output.ns": 6,
        "batch.4.count": 1,
        "batch.4.compute_input.ns": 1,
        "batch.4.compute_infer.ns": 20,
        "batch.4.compute_output.ns": 3,
    }


def test_an_execution_that_failed_whole_infers_nothing() -> None:
    counted = ModelStatistics()
    counted.executed(**execution(rows=0, requests=0, queue_ns=0, success_ns=0))
    increments = taken(counted)
    assert increments.last_inference_ms == 0
    assert increments.counts["execution_count"] == 1
    assert not any(name.startswith("success") for name in increments.counts)


def test_what_was_taken_is_not_taken_again() -> None:
    counted = ModelStatistics()
    counted.distribute(is_wanted=True)
    counted.executed(**execution())
    counted.failed(1)
    taken(counted)
    assert counted.take() is None


@given(st.lists(st.sampled_from(["execute", "fail", "retry", "take"])))
def test_increments_add_up_to_what_happened(events: list[str]) -> None:
    counted = ModelStatistics()
    total: Counter[str] = Counter()
    for event in [*events, "take"]:
        match event:
            case "execute":
                counted.executed(**execution())
            case "fail":
                counted.failed(5, FailureReason.REJECTED)
            case "retry":
                counted.retried(1)
            case _:
                increments = counted.take()
                total.update(increments.counts if increments else {})
    assert total["execution_count"] == events.count("execute")
    assert total["batch.4.compute_infer.ns"] == 20 * events.count("execute")
    assert total["fail.count"] == total["fail.REJECTED"] == events.count("fail")
    assert total["retries"] == events.count("retry")


def test_no_duration_falls_below_zero() -> None:
    counted = ModelStatistics()
    counted.executed(**execution(queue_ns=-5))
    counted.failed(-1)
    counted.missed_cache(-1)
    counted.first_response(-1)
    counts = taken(counted).counts
    assert min(counts.values()) > 0
    assert {"queue.ns", "fail.ns", "cache_miss.ns"} & counts.keys() == set()


def test_an_answer_from_the_cache_is_a_success_without_an_inference() -> None:
    counted = ModelStatistics()
    counted.answered_from_cache(lookup_ns=8, queue_ns=2, success_ns=20, at_ms=5)
    counted.missed_cache(9)
    assert taken(counted).counts == {
        "success.count": 1,
        "success.ns": 20,
        "queue.count": 1,
        "queue.ns": 2,
        "cache_hit.count": 1,
        "cache_hit.ns": 8,
        "cache_miss.count": 1,
        "cache_miss.ns": 9,
    }


def test_responses_are_counted_by_their_place() -> None:
    counted = ModelStatistics()
    for index, phase in (
        (0, ResponsePhase.SUCCESS),
        (1, ResponsePhase.SUCCESS),
        (1, ResponsePhase.FAIL),
    ):
        counted.responded(index, {phase: 5, ResponsePhase.COMPUTE_INFER: 3})
    counts = taken(counted).counts
    assert counts["response.1.success.count"] == counts["response.1.fail.count"] == 1
    assert counts["response.1.compute_infer.count"] == 2
    assert counts["response.0.compute_infer.ns"] == 3


@pytest.mark.parametrize(
    ("ms", "bound"), [(99, "100"), (100, "100"), (101, "500"), (5001, "inf")]
)
def test_a_first_response_falls_into_the_smallest_bucket_that_holds_it(
    ms: int, bound: str
) -> None:
    counted = ModelStatistics()
    counted.first_response(ms * MS)
    assert taken(counted).counts == {
        f"first_response.le.{bound}": 1,
        "first_response.us": ms * 1000,
    }


def test_distributions_hold_each_requests_own_durations() -> None:
    counted = ModelStatistics()
    counted.distribute(is_wanted=True)
    assert counted.latencies is not None
    counted.took(counted.latencies, [(5, 50), (7, 60)], (1, 20, 3))
    counted.executed(**execution())
    latencies = taken(counted).latencies
    assert latencies[Phase.QUEUE].counts == {bucket_of(5): 1, bucket_of(7): 1}
    assert latencies[Phase.SUCCESS].sum_ns == 110
    assert latencies[Phase.COMPUTE_INFER].counts == {bucket_of(20): 2}
    counted.distribute(is_wanted=False)
    assert counted.latencies is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OverloadedError, FailureReason.REJECTED),
        (DeadlineExceededError, FailureReason.REJECTED),
        (RequestCancelledError, FailureReason.CANCELED),
        (BackendError, FailureReason.BACKEND),
        (StoppingError, FailureReason.OTHER),
        (ModelNotReadyError, FailureReason.OTHER),
    ],
)
def test_every_failure_has_one_of_four_reasons(
    error: type[ServingError], reason: FailureReason
) -> None:
    assert failure_reason(error("")) is reason


def test_a_model_may_choose_the_buckets_of_first_responses() -> None:
    ledger = StatisticsLedger()
    control = MetricControl(
        family="nv_inference_first_response_histogram_ms", histogram_buckets=(1.0, 7.0)
    )
    other = MetricControl(family="another", histogram_buckets=(5.0,))
    counted = ledger.of_route(route(add_sub(metric_controls=(other, control))))
    counted.first_response(6 * MS)
    assert taken(counted).counts["first_response.le.7"] == 1
    assert ledger.of_route(route(add_sub())) is counted
    counted.first_response(6 * MS)
    assert taken(counted).counts["first_response.le.100"] == 1


def test_switched_off_statistics_count_nothing_whatever_happens() -> None:
    counted = StatisticsLedger(is_counting=False).of("m", 1)
    counted.executed(
        batch_rows=2,
        rows=2,
        requests=2,
        queue_ns=1,
        success_ns=5,
        timing=(1, 1, 1),
        at_ms=1,
    )
    counted.compute.add(1, (1, 1, 1))
    counted.failed(3)
    counted.retried(1)
    counted.lost(quarantined=1)
    counted.missed_cache(1)
    counted.answered_from_cache(lookup_ns=1, queue_ns=1, success_ns=1, at_ms=1)
    counted.streamed(rows=1, queue_ns=1, success_ns=1, at_ms=1)
    counted.computed((1, 1, 1))
    counted.responded(0, {ResponsePhase.SUCCESS: 1})
    counted.first_response(1)
    counted.distribute(is_wanted=True)
    assert counted.latencies is None
    assert counted.take() is None
    assert not counted.others


@pytest.mark.parametrize("counts", [True, False])
def test_the_extensions_name_statistics_only_while_there_are_some(
    *, counts: bool
) -> None:
    inference = Inference(Reactor(), lambda: None, counts=counts)
    readiness = Readiness(inference, lambda _, __: frozenset())
    servicer = InferenceServicer(inference, readiness)
    named = servicer.methods()[SERVICE + "ServerMetadata"](b"")
    extensions = pb.ServerMetadataResponse.FromString(named).extensions
    assert ("statistics" in extensions) is counts
    assert "trace" in extensions


def test_a_success_without_an_execution_is_taken_too() -> None:
    counted = ModelStatistics()
    counted.success.add(1, 5)
    assert taken(counted).counts == {"success.count": 1, "success.ns": 5}
