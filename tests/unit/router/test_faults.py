"""Lost workers, full queues and devices: what the scheduler makes of them."""

from typing import Any

import pytest

from protos import inference_pb2 as pb
from services.core.model_config import DynamicBatching, QueuePolicy, TimeoutAction
from services.router.queue_limits import QueueLimits
from services.router.retries import Isolation
from tests.unit.router.routes import add_sub
from tests.unit.router.stage import MS, PuppetRequest, Stage, error, response, staged

SECOND = 1_000_000_000
UNAVAILABLE, INTERNAL, RESOURCE_EXHAUSTED = 14, 13, 8


@pytest.fixture
def stage() -> Stage:
    return staged(add_sub())


def policed(**policy: Any) -> Stage:  # noqa: ANN401
    batching = DynamicBatching(default_queue_policy=QueuePolicy(**policy))
    return staged(add_sub(dynamic_batching=batching))


def codes(requests: list[PuppetRequest]) -> list[object]:
    """Return the code each was refused with; its answer if it got one."""
    outcomes = [outcome for r in requests for outcome in r.outcome]
    assert len(outcomes) == len(requests)
    return [o[0] if isinstance(o, tuple) else o for o in outcomes]


def test_a_lost_batch_runs_again_elsewhere_before_all_others(stage: Stage) -> None:
    lost = stage.instance("dying")
    requests = stage.enqueue("a", "b")
    stage.enqueue("c")
    stage.lose(lost)
    other = stage.instance("sound")
    for _ in range(3):
        stage.complete(other, response(b"."))
    assert codes(requests) == [b".", b"."]
    assert [r.attempts for r in requests] == [1, 1]


@pytest.mark.parametrize("is_idempotent", ["true", "false"])
def test_a_batch_on_its_way_to_who_leaves_in_order_has_not_been_attempted(
    is_idempotent: str,
) -> None:
    stage = staged(add_sub(parameters={"nereid_idempotent": is_idempotent}))
    requests = stage.enqueue("a", "b")
    stage.enqueue("c")
    for number in range(3):
        instance = stage.instance(f"leaving{number}")
        assert instance.names() == [["a", "b", "c"]]
        stage.part(instance)
    other = stage.instance("staying")
    assert not other.held[0].is_isolated
    stage.complete(other, *[response(b".")] * 3)
    assert codes(requests) == [b".", b"."]
    assert [r.attempts for r in requests] == [0, 0]
    counts = stage.scheduler.statistics.take()
    assert counts is not None
    told = {"lost_executions", "retried", "quarantined"} & set(counts.counts)
    assert not any(counts.counts[name] for name in told)


def test_a_suspect_that_was_not_begun_stays_alone_under_suspicion() -> None:
    stage = staged(add_sub())
    suspects = stage.enqueue("a")
    stage.lose(stage.instance("dying"))
    leaving = stage.instance("leaving")
    assert leaving.held[0].is_isolated
    stage.part(leaving)
    last = stage.instance("last")
    assert last.held[0].is_isolated
    stage.lose(last)
    assert codes(suspects) == [INTERNAL]


def test_a_lost_batch_is_split_until_the_guilty_request_stands_alone() -> None:
    stage = staged(add_sub(max_batch_size=16))
    requests = stage.enqueue(*"abcdefghijklmnop")
    stage.instance("w0")
    sizes, deaths = [], 0
    while not all(r.outcome for r in requests):
        (instance,) = stage.scheduler._instances
        (execution,) = instance.held  # type: ignore[attr-defined]
        sizes.append(len(execution.batch))
        if any(r is requests[4] for r in execution.batch):
            deaths += 1
            stage.lose(instance)  # type: ignore[arg-type]
            stage.instance(f"w{deaths}")
        else:
            replies = [response(b".")] * len(execution.batch)
            stage.complete(instance, *replies)  # type: ignore[arg-type]
    expected: list[object] = [b"."] * 16
    expected[4] = INTERNAL
    assert codes(requests) == expected
    assert (sizes, deaths) == ([16, 4, 4, 4, 4, 1, 1, 1, 1], 3)


def test_a_request_that_kills_a_worker_twice_is_refused_and_remembered(
    stage: Stage,
) -> None:
    body = pb.ModelInferRequest(model_name="simple", id="1").SerializeToString()
    again = pb.ModelInferRequest(model_name="simple", id="2").SerializeToString()
    guilty = PuppetRequest("guilty", body=body)
    stage.scheduler.enqueue(guilty)
    for _ in range(2):
        stage.lose(stage.instance())
    instance = stage.instance()
    copies = [PuppetRequest("again", body=again) for _ in range(2)]
    stage.scheduler.enqueue(copies[0])
    stage.clock_ns = 601 * SECOND
    copies[1].enqueued_ns = stage.clock_ns
    stage.scheduler.enqueue(copies[1])
    stage.reactor.drain()
    assert codes([guilty, copies[0]]) == [INTERNAL, INTERNAL]
    assert "[request id: 2]" in copies[0].outcome[0][1]  # type: ignore[index]
    assert instance.names() == [["again"]]
    counts = stage.scheduler.statistics.take()
    assert counts is not None
    assert (counts.counts["quarantined"], counts.counts["lost_executions"]) == (1, 2)


def test_suspects_run_one_at_a_time_on_a_worker_whatever_their_model() -> None:
    isolation = Isolation()
    first, second = (staged(add_sub(), isolation=isolation) for _ in range(2))
    suspects = []
    for stage in (first, second):
        instance = stage.instance("dying")
        suspects += stage.enqueue("suspect")
        stage.lose(instance)
    one, two = first.instance("w"), second.instance("w")
    assert (one.names(), two.names()) == ([["suspect"]], [])
    first.complete(one, response(b"."))
    first.reactor.drain()
    assert two.names() == [["suspect"]]
    second.complete(two, response(b"."))
    assert codes(suspects) == [b".", b"."]


def test_a_fresh_request_does_not_wait_behind_a_suspect(stage: Stage) -> None:
    dying = stage.instance("dying")
    stage.enqueue("suspect")
    stage.lose(dying)
    stage.instance("w")
    idle = stage.instance("w")
    stage.enqueue("fresh")
    assert idle.names() == [["fresh"]]


def test_a_suspect_whose_client_has_left_does_not_run_again(stage: Stage) -> None:
    dying = stage.instance("dying")
    (gone,) = stage.enqueue("gone")
    stage.lose(dying)
    gone.open = False
    stage.scheduler.forget(gone)
    assert stage.instance().names() == []
    assert stage.scheduler.is_quiet


def test_a_model_that_opts_out_never_runs_a_request_twice() -> None:
    stage = staged(add_sub(parameters={"nereid_idempotent": "false"}))
    requests = stage.enqueue("a", "b")
    stage.lose(stage.instance())
    assert codes(requests) == [UNAVAILABLE, UNAVAILABLE]
    assert stage.instance().names() == []


def test_without_a_worker_requests_wait_so_long_and_are_then_refused_at_once() -> None:
    limits = QueueLimits(no_worker_timeout_ns=10 * SECOND)
    stage = staged(add_sub(), limits)
    stage.clock_ns = 4 * SECOND
    (waiting,) = stage.enqueue("waiting")
    stage.advance(10 * SECOND - 1)
    assert waiting.outcome == []
    stage.advance(10 * SECOND)
    (late,) = stage.enqueue("late")
    assert codes([waiting, late]) == [UNAVAILABLE, UNAVAILABLE]
    instance = stage.instance()
    stage.enqueue("again")
    assert instance.names() == [["again"]]


def test_the_wait_for_a_worker_begins_anew_with_each_loss() -> None:
    stage = staged(add_sub(), QueueLimits(no_worker_timeout_ns=10 * SECOND))
    stage.enqueue("early")
    instance = stage.instance()
    stage.advance(8 * SECOND)
    stage.lose(instance)
    (late,) = stage.enqueue("late")
    stage.advance(10 * SECOND)
    assert late.outcome == []
    stage.advance(18 * SECOND)
    assert codes([late]) == [UNAVAILABLE]
    assert stage.scheduler.is_quiet


def test_a_batch_too_large_for_its_device_runs_in_halves_and_the_size_is_kept(
    stage: Stage,
) -> None:
    instance = stage.instance()
    requests = stage.enqueue(*"abcd")
    full = error(RESOURCE_EXHAUSTED, "out of memory")
    stage.complete(instance, full, full, full, full)
    assert instance.names() == [["a", "b"]]
    stage.complete(instance, response(b"A"), response(b"B"))
    stage.complete(instance, response(b"C"), response(b"D"))
    assert codes(requests) == [b"A", b"B", b"C", b"D"]
    stage.enqueue("e")
    stage.enqueue("f", "g", "h")
    stage.complete(instance, response(b"E"))
    assert instance.names() == [["f", "g"]]


def test_a_request_too_large_for_the_device_by_itself_is_an_error(
    stage: Stage,
) -> None:
    instance = stage.instance()
    (request,) = stage.enqueue("a")
    stage.complete(instance, error(RESOURCE_EXHAUSTED, "out of memory"))
    assert request.outcome == [(INTERNAL, "out of memory")]


def test_a_full_queue_refuses_with_the_id_of_the_request() -> None:
    stage = policed(max_queue_size=2)
    instance = stage.instance()
    stage.enqueue("running")
    waiting = stage.enqueue("b", "c")
    body = pb.ModelInferRequest(model_name="m", id="q7").SerializeToString()
    refused = PuppetRequest("d", body=body)
    stage.scheduler.enqueue(refused)
    (nameless,) = stage.enqueue("e")
    text = "Exceeds maximum queue size"
    assert refused.outcome == [(UNAVAILABLE, f"[request id: q7] {text}")]
    assert nameless.outcome == [(UNAVAILABLE, f"[request id: <id_unknown>] {text}")]
    stage.complete(instance, response(b"."))
    assert instance.names() == [["b", "c"]]
    assert [r.outcome for r in waiting] == [[], []]


def test_a_timeout_is_told_when_it_ends_although_the_instance_is_busy() -> None:
    stage = policed(default_timeout_ns=300 * MS, allow_timeout_override=True)
    stage.instance()
    stage.enqueue("running")
    stage.clock_ns = 100 * MS
    (late,) = stage.enqueue("late")
    (hasty,) = stage.enqueue("hasty", timeout_ns=50 * MS)
    stage.advance(150 * MS)
    assert codes([hasty]) == [UNAVAILABLE]
    stage.advance(400 * MS - 1)
    assert late.outcome == []
    stage.advance(400 * MS)
    assert late.outcome == [(UNAVAILABLE, "Request timeout expired")]
    counts = stage.scheduler.statistics.take()
    assert counts is not None
    assert counts.counts["fail.REJECTED"] == 2


def test_a_delayed_request_is_served_after_those_in_time() -> None:
    stage = policed(timeout_action=TimeoutAction.DELAY, default_timeout_ns=10 * MS)
    stage.enqueue("late", rows=5)
    stage.advance(20 * MS)
    stage.enqueue("in time", rows=5)
    first, second = stage.instance(), stage.instance()
    assert (first.names(), second.names()) == ([["in time"]], [["late"]])


def test_a_higher_priority_overtakes() -> None:
    batching = DynamicBatching(priority_levels=2, default_priority_level=2)
    stage = staged(add_sub(dynamic_batching=batching))
    stage.enqueue("default", rows=5)
    stage.enqueue("urgent", rows=5, priority=1)
    stage.enqueue("out of range", rows=5, priority=3)
    names = [stage.instance().names() for _ in range(3)]
    assert names == [[["urgent"]], [["default"]], [["out of range"]]]


def test_answers_leave_in_the_order_of_arrival_if_the_model_wants_it() -> None:
    batching = DynamicBatching(preserve_ordering=True)
    stage = staged(add_sub(dynamic_batching=batching))
    a, b, gone, d = stage.enqueue(*"abcd", rows=8)
    first, second = stage.instance(), stage.instance()
    stage.complete(second, response(b"B"))
    gone.open = False
    stage.scheduler.forget(gone)
    stage.complete(second, response(b"nobody waits for it"))
    stage.complete(second, error(3, "d is bad"))
    assert [r.outcome for r in (a, b, d)] == [[], [], []]
    stage.complete(first, response(b"A"))
    assert [r.outcome for r in (a, b, d)] == [[b"A"], [b"B"], [(3, "d is bad")]]


def test_a_queue_holds_so_many_bytes_and_no_more() -> None:
    stage = staged(add_sub(), QueueLimits(max_queue_bytes=3))
    instance = stage.instance()
    stage.enqueue("running")
    waiting = stage.enqueue("b", "c", "d")
    (refused,) = stage.enqueue("e")
    assert codes([refused]) == [UNAVAILABLE]
    stage.complete(instance, response(b"."))
    assert instance.names() == [["b", "c", "d"]]
    assert [r.outcome for r in waiting] == [[], [], []]


def test_the_scheduler_can_be_held_until_so_many_requests_wait() -> None:
    stage = staged(add_sub(), QueueLimits(hold_until=3))
    instance = stage.instance()
    stage.enqueue("a", "b")
    assert instance.names() == []
    stage.enqueue("c")
    assert instance.names() == [["a", "b", "c"]]
    stage.complete(instance, *[response(b".")] * 3)
    stage.enqueue("d")
    assert instance.names() == [["d"]]


def test_a_stopping_scheduler_answers_what_its_instances_leave_behind(
    stage: Stage,
) -> None:
    instance = stage.instance()
    (running,) = stage.enqueue("running")
    stage.scheduler.close()
    stage.lose(instance)
    assert running.outcome == [(UNAVAILABLE, "the server is shutting down")]


def test_a_suspect_does_not_meet_the_other_streams_of_the_lost_worker(
    stage: Stage,
) -> None:
    remnant, lost = stage.instance("stopped"), stage.instance("stopped")
    stage.clock_ns = SECOND
    (suspect,) = stage.enqueue("suspect")
    stage.lose(lost)
    assert remnant.names() == []
    stage.enqueue("fresh")
    assert remnant.names() == [["fresh"]]
    sound = stage.instance("stopped")
    assert sound.names() == [["suspect"]]
    stage.complete(sound, response(b"."))
    assert suspect.outcome == [b"."]


def test_a_stream_that_has_outlived_another_for_long_is_sound(stage: Stage) -> None:
    remnant, lost = stage.instance(), stage.instance()
    stage.clock_ns = SECOND
    stage.enqueue("suspect")
    stage.lose(lost)
    stage.advance(9 * SECOND - 1)
    assert remnant.names() == []
    stage.advance(9 * SECOND)
    assert remnant.names() == [["suspect"]]
