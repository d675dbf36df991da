"""Requests through the router's real doors to a puppet worker and back."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import grpc
import pytest

from protos import inference_pb2 as pb
from services.core.completion_queue import ClientStream
from services.router.route_table import RouteTable
from services.router.scheduler import Scheduler
from tests.unit.router.routes import add_sub, add_sub_request, route
from tests.unit.router.running import RunningRouter, running_router
from tests.unit.router.stage import PuppetInstance


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RunningRouter]:
    with running_router(tmp_path) as router:
        yield router


def status(future: object) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.RpcError) as caught:
        future.result(timeout=10)  # type: ignore[attr-defined]
    return caught.value.code(), caught.value.details()


def until(router: RunningRouter, is_true: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 5
    while not is_true():
        assert time.monotonic() < give_up_at
        router.on_loop(lambda: None)


def test_a_request_travels_to_the_worker_and_its_answer_back(
    router: RunningRouter,
) -> None:
    worker = router.worker()
    future = router.infer(add_sub_request(id="one"))
    assert [request.id for request in worker.answer_next()] == ["one"]
    assert future.result(timeout=5).id == "one"


def test_requests_that_wait_for_the_worker_share_a_batch(router: RunningRouter) -> None:
    worker = router.worker()
    first = router.infer(add_sub_request(id="first"))
    held = worker.next_batch()
    rest = [router.infer(add_sub_request(id=f"{i}")) for i in range(3)]
    router.on_loop(lambda: None)
    worker.answer(*held)
    assert first.result(timeout=5).id == "first"
    answer_until(worker, 3)
    assert [future.result(timeout=5).id for future in rest] == ["0", "1", "2"]


def test_a_worker_may_dial_in_before_its_route_is_known(router: RunningRouter) -> None:
    worker = router.worker(generation=2)
    router.apply(RouteTable.of([route(add_sub(), 2, generation=2)]))
    future = router.infer(add_sub_request())
    worker.answer_next()
    assert future.result(timeout=5).model_name == "simple"


def test_a_request_waits_for_a_worker_that_is_still_to_come(
    router: RunningRouter,
) -> None:
    future = router.infer(add_sub_request(id="early"))
    worker = router.worker()
    assert [request.id for request in worker.answer_next()] == ["early"]
    assert future.result(timeout=5).id == "early"


def test_a_worker_that_dies_mid_batch_costs_latency_not_an_error(
    router: RunningRouter,
) -> None:
    doomed = router.worker()
    future = router.infer(add_sub_request(id="a"))
    doomed.next_batch()
    doomed.die()
    # One that was there before would be taken for a remnant of the same worker.
    until(router, lambda: not router.inference.is_model_ready("simple", ""))
    successor = router.worker()
    assert [request.id for request in successor.answer_next()] == ["a"]
    assert future.result(timeout=5).id == "a"


def test_a_batch_on_its_way_to_a_worker_that_leaves_in_order_runs_elsewhere(
    router: RunningRouter,
) -> None:
    config = add_sub(parameters={"nereid_idempotent": "false"})
    applied = router.apply(RouteTable.of([route(config, generation=2)]))
    leaving = router.worker(generation=2)
    assert applied.wait(30)
    future = router.infer(add_sub_request(id="once"))
    assert [r.id for r in leaving.next_batch()] == ["once"]
    leaving.leave()
    router.worker(generation=2).answer_next()
    assert future.result().id == "once"


def test_a_refused_request_never_reaches_the_worker(router: RunningRouter) -> None:
    worker = router.worker()
    refused = router.infer(add_sub_request(model_name="nope"))
    assert status(refused) == (
        grpc.StatusCode.NOT_FOUND,
        "Request for unknown model: 'nope' is not found",
    )
    router.infer(add_sub_request(id="good"))
    assert [request.id for request in worker.answer_next()] == ["good"]


def test_a_client_that_leaves_while_queued_is_not_executed(
    router: RunningRouter,
) -> None:
    worker = router.worker()
    router.infer(add_sub_request(id="running"))
    held = worker.next_batch()
    router.infer(add_sub_request(id="gone")).cancel()
    late = router.infer(add_sub_request(id="late"), timeout=0.05)
    assert status(late)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    last = router.infer(add_sub_request(id="last"))
    router.on_loop(lambda: None)
    worker.answer(*held)
    assert [request.id for request in worker.answer_next()] == ["last"]
    assert last.result(timeout=5).id == "last"


def test_a_removed_model_answers_who_was_admitted_before_it_is_let_go(
    router: RunningRouter,
) -> None:
    worker = router.worker()
    admitted = router.infer(add_sub_request(id="old"))
    batch = worker.next_batch()
    applied = router.apply(RouteTable.of([], names=["simple"]))
    late = router.infer(add_sub_request())
    assert "'simple' has no available versions" in str(status(late)[1])
    assert not applied.is_set()
    worker.answer(*batch)
    assert admitted.result(timeout=5).id == "old"
    assert applied.wait(30)


def test_a_table_is_in_force_once_what_is_new_can_be_called(
    router: RunningRouter,
) -> None:
    router.worker()
    routes = [route(add_sub()), route(add_sub("new"), generation=2)]
    applied = router.apply(RouteTable.of(routes))
    assert not applied.is_set()
    router.worker(2)
    assert applied.wait(30)


def test_a_later_table_is_not_acknowledged_before_an_earlier_one(
    router: RunningRouter,
) -> None:
    worker = router.worker()
    admitted = router.infer(add_sub_request(id="old"))
    held = worker.next_batch()
    first = router.apply(RouteTable.of([], names=["simple"]))
    second = router.apply(RouteTable.of([], names=["simple", "other"]))
    assert not first.is_set()
    assert not second.is_set()
    worker.answer(*held)
    assert admitted.result(timeout=5).id == "old"
    assert first.wait(30)
    assert second.wait(30)


@pytest.mark.parametrize("leaves", [ClientStream.finish, ClientStream.cancel])
def test_an_instance_that_leaves_before_its_route_came_is_let_go(
    router: RunningRouter, leaves: Callable[[ClientStream], None]
) -> None:
    stream = router.worker(generation=7).stream
    dispatcher = router.inference.dispatcher
    until(router, lambda: dispatcher.early == 1)
    leaves(stream)
    until(router, lambda: dispatcher.early == 0)
    until(router, lambda: stream.status is not None)


def test_a_stopping_router_refuses_newcomers_and_answers_the_admitted(
    router: RunningRouter,
) -> None:
    worker = router.worker()
    admitted = router.infer(add_sub_request(id="in time"))
    batch = worker.next_batch()
    router.on_loop(lambda: setattr(router.inference, "stopping", True))
    assert status(router.infer(add_sub_request()))[0] is grpc.StatusCode.UNAVAILABLE
    worker.answer(*batch)
    assert admitted.result(timeout=5).id == "in time"


def test_a_stream_answers_each_request_and_ends_when_all_are_answered(
    router: RunningRouter,
) -> None:
    worker = router.worker()
    requests = [add_sub_request(id=name) for name in ("a", "bad", "c")]
    requests[1].model_name = "nope"
    responses = router.stream(iter(requests))
    answering = threading.Thread(target=answer_until, args=(worker, 2))
    answering.start()
    by_id = {r.infer_response.id: r for r in responses}
    answering.join(timeout=5)
    assert set(by_id) == {"a", "bad", "c"}
    assert by_id["a"].infer_response.parameters["triton_final_response"].bool_param
    assert by_id["bad"].error_message == (
        "Request for unknown model: 'nope' is not found"
    )
    assert not by_id["c"].error_message


def answer_until(worker: object, count: int) -> None:
    while count > 0:
        count -= len(worker.answer_next())  # type: ignore[attr-defined]


def test_a_stream_that_asked_for_it_ends_with_the_status_of_its_first_error(
    router: RunningRouter,
) -> None:
    requests = iter([add_sub_request(model_name="nope")])
    responses = router.stream(requests, ("triton_grpc_error", "true"))
    with pytest.raises(grpc.RpcError) as caught:
        next(responses)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_stream_that_is_cancelled_leaves_the_queue(router: RunningRouter) -> None:
    worker = router.worker()
    router.infer(add_sub_request(id="running"))
    held = worker.next_batch()
    waiting: SimpleQueue[pb.ModelInferRequest] = SimpleQueue()
    waiting.put(add_sub_request(id="streamed"))
    responses = router.stream(iter(waiting.get, None))
    scheduler = router.inference.scheduler_of(route(add_sub()))
    assert scheduler is not None
    while not scheduler.waiting:
        router.on_loop(lambda: None)
    responses.cancel()
    while scheduler.waiting:
        router.on_loop(lambda: None)
    worker.answer(*held)
    last = router.infer(add_sub_request(id="last"))
    assert [request.id for request in worker.answer_next()] == ["last"]
    assert last.result(timeout=5).id == "last"


def test_a_client_that_does_not_read_is_not_read_from_without_end(
    router: RunningRouter,
) -> None:
    sent: SimpleQueue[int] = SimpleQueue()

    def many() -> Iterator[pb.ModelInferRequest]:
        for index in range(5000):
            sent.put(index)
            yield add_sub_request(id=f"{index}")

    responses = router.stream(many())
    scheduler = router.inference.scheduler_of(route(add_sub()))
    assert scheduler is not None
    while scheduler.waiting < 1024:
        router.on_loop(lambda: None)
    for _ in range(50):
        router.on_loop(lambda: None)
    assert scheduler.waiting == 1024
    responses.cancel()


@pytest.fixture
def _threads_that_take_turns_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_threads_that_take_turns_often")
def test_readiness_may_be_asked_for_while_routes_change(router: RunningRouter) -> None:
    stopping = threading.Event()
    errors: SimpleQueue[RuntimeError] = SimpleQueue()

    def ask() -> None:
        while not stopping.is_set():
            try:
                router.inference.is_ready()
            except RuntimeError as error:
                errors.put(error)

    asking = threading.Thread(target=ask)
    asking.start()
    for first in range(100, 10_000, 100):
        routes = [route(add_sub(f"m{k}"), generation=first + k) for k in range(9)]
        router.apply(RouteTable.of(routes))
        for each in routes:
            scheduler = router.inference.scheduler_of(each)
            assert isinstance(scheduler, Scheduler)
            router.on_loop(partial(scheduler.attach, PuppetInstance()))
    stopping.set()
    asking.join()
    assert errors.empty()
