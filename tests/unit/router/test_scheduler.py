"""The scheduler: requests, instances and a clock, none of them real.

The puppet instance holds each batch until the test lets it go.
"""

from collections.abc import Mapping

import pytest

from protos import worker_pb2
from services.core.model_config import DynamicBatching
from tests.unit.router.routes import add_sub
from tests.unit.router.stage import MS, Stage, error, response, staged


@pytest.fixture
def stage() -> Stage:
    return staged(add_sub())


def test_requests_wait_for_an_instance_and_then_go_together(stage: Stage) -> None:
    stage.enqueue("a", "b")
    instance = stage.instance()
    assert instance.names() == [["a", "b"]]


def test_what_arrives_while_the_instance_is_busy_goes_in_one_batch(
    stage: Stage,
) -> None:
    instance = stage.instance()
    stage.enqueue("a")
    stage.enqueue("b", "c", "d")
    assert instance.names() == [["a"]]
    stage.complete(instance, response(b"A"))
    assert instance.names() == [["b", "c", "d"]]


def test_each_request_gets_its_own_answer(stage: Stage) -> None:
    instance = stage.instance()
    a, b, c = stage.enqueue("a", "b", "c")
    stage.complete(instance, response(b"A"), error(3, "b is bad"), response(b"x" * 300))
    assert (a.outcome, b.outcome) == ([b"A"], [(3, "b is bad")])
    assert c.outcome == [b"x" * 300]


def test_an_empty_answer_is_an_answer(stage: Stage) -> None:
    instance = stage.instance()
    (a,) = stage.enqueue("a")
    stage.complete(instance, response(b""))
    assert a.outcome == [b""]


@pytest.mark.parametrize("message", [b"", b"\x12", b"\x12\x05\x0a", b"\x77", b"\x0a"])
def test_an_answer_that_cannot_be_read_fails_the_whole_batch(
    stage: Stage, message: bytes
) -> None:
    instance = stage.instance()
    requests = stage.enqueue("a", "b")
    stage.scheduler.completed(instance, instance.held.pop(), message)
    assert [len(request.outcome) for request in requests] == [1, 1]
    assert all(request.outcome[0][0] == 13 for request in requests)  # type: ignore[index]


def test_a_client_that_left_is_not_executed(stage: Stage) -> None:
    _, gone = stage.enqueue("a", "gone")
    stage.scheduler.forget(gone)
    assert stage.instance().names() == [["a"]]


def test_a_delay_holds_a_batch_until_its_timer() -> None:
    batching = DynamicBatching(max_queue_delay_ns=5 * MS)
    stage = staged(add_sub(dynamic_batching=batching))
    instance = stage.instance()
    stage.enqueue("a")
    assert instance.names() == []
    assert [timer.when_ns for timer in stage.reactor.timers] == [5 * MS]
    stage.clock_ns = 3 * MS
    stage.enqueue("b")
    assert len(stage.reactor.timers) == 1
    stage.clock_ns = 5 * MS
    stage.reactor.fire()
    assert instance.names() == [["a", "b"]]


def test_without_dynamic_batching_each_request_is_executed_alone() -> None:
    stage = staged(add_sub(dynamic_batching=None))
    stage.enqueue("a", "b", "c")
    first, second = stage.instance(), stage.instance()
    assert (first.names(), second.names()) == ([["a"]], [["b"]])


def test_statistics_count_rows_requests_and_executions(stage: Stage) -> None:
    instance = stage.instance()
    stage.enqueue("a", "b", rows=2)
    stage.clock_ns = 5 * MS
    stage.complete(instance, response(b""), response(b""), ms=3)
    counted = stage.scheduler.statistics
    assert (counted.inference_count, counted.execution_count) == (4, 1)
    assert (counted.success.count, counted.success.ns) == (2, 10 * MS)
    assert (counted.queue.count, counted.queue.ns) == (2, 0)
    assert counted.compute.infer_ns == 6 * MS
    assert (counted.batches[4].count, counted.batches[4].infer_ns) == (1, 3 * MS)


def test_an_execution_counts_also_for_those_whom_it_failed(stage: Stage) -> None:
    instance = stage.instance()
    stage.enqueue("a", "b", rows=2)
    stage.complete(instance, response(b""), error(3, "bad"))
    stage.enqueue("c", rows=2)
    stage.complete(instance, error(3, "bad"))
    counts = taken(stage)
    assert (counts["inference_count"], counts["execution_count"]) == (2, 2)
    assert (counts["batch.4.count"], counts["batch.2.count"]) == (1, 1)
    assert (counts["success.count"], counts["fail.count"]) == (1, 2)
    assert counts["fail.BACKEND"] == 2


def test_an_error_that_the_model_itself_answered_with_counts_as_success(
    stage: Stage,
) -> None:
    instance = stage.instance()
    stage.enqueue("a", "b", rows=2)
    answer = worker_pb2.ReplyError(code=3, message="no", is_answer=True)
    stage.complete(instance, worker_pb2.Reply(error=answer), error(3, "no"))
    counts = taken(stage)
    assert (counts["success.count"], counts["fail.BACKEND"]) == (1, 1)
    assert counts["inference_count"] == 2


def test_a_client_that_left_is_counted_once_whether_it_waited_or_not(
    stage: Stage,
) -> None:
    (waiting,) = stage.enqueue("waiting")
    stage.clock_ns = 3 * MS
    waiting.open = False
    stage.scheduler.forget(waiting)
    instance = stage.instance()
    (executing,) = stage.enqueue("executing")
    executing.open = False
    stage.scheduler.forget(executing)
    stage.complete(instance, response(b""))
    counts = taken(stage)
    assert (counts["fail.CANCELED"], counts["fail.ns"]) == (2, 3 * MS)
    assert counts["execution_count"] == 1
    assert {"inference_count", "success.count"} & counts.keys() == set()


def test_requests_that_run_again_are_counted_as_retries(stage: Stage) -> None:
    stage.enqueue("a", "b")
    instance = stage.instance()
    stage.lose(instance)
    assert taken(stage) == {"retries": 2, "lost_executions": 1}


def test_who_is_refused_because_the_server_stops_failed_for_another_reason(
    stage: Stage,
) -> None:
    stage.enqueue("a")
    stage.scheduler.close()
    assert taken(stage)["fail.OTHER"] == 1


def taken(stage: Stage) -> Mapping[str, int]:
    increments = stage.scheduler.statistics.take()
    assert increments is not None
    return increments.counts


def test_waiting_counts_as_queueing_until_the_batch_leaves(stage: Stage) -> None:
    stage.enqueue("a")
    stage.clock_ns = 7 * MS
    instance = stage.instance()
    stage.clock_ns = 9 * MS
    stage.complete(instance, response(b""))
    counted = stage.scheduler.statistics
    assert (counted.queue.ns, counted.success.ns) == (7 * MS, 9 * MS)
    # What is neither is the way to the worker and back.
    assert sum(counted.compute.ns) == 1 * MS + 3


def test_a_retiring_scheduler_is_quiet_only_when_all_are_answered(
    stage: Stage,
) -> None:
    quiet: list[str] = []
    instance = stage.instance()
    stage.enqueue("a")
    stage.enqueue("b")
    stage.scheduler.when_quiet(lambda: quiet.append("now"))
    stage.complete(instance, response(b""))
    assert quiet == []
    stage.complete(instance, response(b""))
    assert quiet == ["now"]


def test_closing_refuses_who_waits_and_parts_from_the_instances(stage: Stage) -> None:
    instance = stage.instance()
    running, waiting = stage.enqueue("a")[0], stage.enqueue("b")[0]
    stage.scheduler.close()
    assert instance.closed
    assert running.outcome == []
    assert waiting.outcome == [(14, "the server is shutting down")]


def test_no_instance_idles_while_a_request_could_run_whoever_has_it() -> None:
    stage = staged(add_sub(dynamic_batching=None))
    instances = [stage.instance(worker) for worker in ("w1", "w1", "w2")]
    stage.enqueue("a", "b", "c", "d")
    held = [instance.names() for instance in instances]
    assert sorted(held) == [[["a"]], [["b"]], [["c"]]]
    (finished,) = [one for one in instances if one.names() == [["b"]]]
    stage.complete(finished, response(b"."))
    assert finished.names() == [["d"]]


def test_the_instance_that_has_just_executed_is_taken_again() -> None:
    stage = staged(add_sub(dynamic_batching=None))
    instances = [stage.instance(worker) for worker in ("w1", "w2")]
    stage.enqueue("a")
    (warm,) = [one for one in instances if one.held]
    for name in ("b", "c"):
        stage.complete(warm, response(b"."))
        stage.enqueue(name)
        assert warm.names() == [[name]]
