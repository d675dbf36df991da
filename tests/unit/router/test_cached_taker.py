"""The response cache through the router's real doors."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from protos import inference_pb2 as pb
from protos import worker_pb2
from services.router.response_cache import ResponseCache
from services.router.route_table import RouteTable
from tests.unit.router.ensembles import ensemble, step
from tests.unit.router.routes import add_sub, add_sub_request, route
from tests.unit.router.running import RunningRouter, running_router
from tests.unit.router.summing import add

CACHED = add_sub("cached", response_cache_enabled=True)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RunningRouter]:
    with running_router(tmp_path, ResponseCache(100_000)) as router:
        router.apply(RouteTable.of([route(CACHED, generation=7)]))
        yield router


def ask(identity: str = "", **parameters: bool) -> pb.ModelInferRequest:
    request = add_sub_request(model_name="cached", id=identity)
    for name, value in parameters.items():
        request.parameters[name].bool_param = value
    return request


def test_the_second_request_is_answered_without_a_worker(
    router: RunningRouter,
) -> None:
    worker = router.worker(7)
    first = router.infer(ask("one"))
    worker.answer_next()
    assert first.result(timeout=5).id == "one"
    assert router.infer(ask("two")).result(timeout=5).id == "two"
    router.on_loop(lambda: None)
    counted = router.inference.statistics.of("cached", 1)
    assert (counted.inference_count, counted.execution_count) == (1, 1)
    assert (counted.success.count, counted.queue.count) == (2, 2)
    assert counted.others["cache_hit.count"] == 1
    assert counted.others["cache_miss.count"] == 1


def test_an_error_is_not_kept(router: RunningRouter) -> None:
    worker = router.worker(7)
    failing = router.infer(ask())
    worker.next_batch()
    error = worker_pb2.ReplyError(code=3, message="no")
    worker.answers.put(worker_pb2.BatchResponse(reply=[worker_pb2.Reply(error=error)]))
    with pytest.raises(grpc.RpcError):
        failing.result(timeout=5)
    again = router.infer(ask("again"))
    assert [request.id for request in worker.answer_next()] == ["again"]
    assert again.result(timeout=5).id == "again"


def test_a_model_loaded_anew_answers_anew(router: RunningRouter) -> None:
    worker = router.worker(7)
    first = router.infer(ask())
    worker.answer_next()
    first.result(timeout=5)
    router.apply(RouteTable.of([route(CACHED, generation=8)]))
    successor = router.worker(8)
    second = router.infer(ask("new"))
    assert [request.id for request in successor.answer_next()] == ["new"]
    assert second.result(timeout=5).id == "new"


def test_who_asks_for_times_gets_an_execution(router: RunningRouter) -> None:
    worker = router.worker(7)
    for _ in range(2):
        timed = router.infer(ask(nereid_timing=True))
        worker.answer_next()
        assert "nereid_queue_ns" in timed.result(timeout=5).parameters


def test_a_client_that_leaves_is_forgotten(router: RunningRouter) -> None:
    worker = router.worker(7)
    running = router.infer(ask("running"))
    held = worker.next_batch()
    late = add_sub_request(model_name="cached", id="late")
    late.raw_input_contents[0] = b"\1" * 64
    gone = router.infer(late, timeout=0.05)
    with pytest.raises(grpc.RpcError):
        gone.result(timeout=5)
    last = router.infer(ask("last"))
    while router.inference.waiting() != {("cached", 1): 1}:
        router.on_loop(lambda: None)
    worker.answer(*held)
    assert running.result(timeout=5).id == "running"
    assert [request.id for request in worker.answer_next()] == ["last"]
    assert last.result(timeout=5).id == "last"


def test_a_model_without_a_cache_is_asked_every_time(router: RunningRouter) -> None:
    router.apply(RouteTable.of([route(add_sub("cached"), generation=9)]))
    worker = router.worker(9)
    for _ in range(2):
        future = router.infer(ask())
        worker.answer_next()
        future.result(timeout=5)


def test_an_ensemble_is_answered_from_the_cache_as_a_whole(
    router: RunningRouter,
) -> None:
    whole = ensemble(
        step("simple", {"INPUT0": "A", "INPUT1": "A"}, {"OUTPUT0": "Z"}),
        cached=True,
    )
    router.apply(
        RouteTable.of([route(add_sub(), generation=1), route(whole, generation=20)])
    )
    worker = router.worker(1)
    request = add_sub_request(model_name="ens")
    del request.inputs[1], request.raw_input_contents[1]
    request.inputs[0].name = "A"
    first = router.infer(request)
    add(worker)
    assert first.result(timeout=5).model_name == "ens"
    request.id = "two"
    assert router.infer(request).result(timeout=5).id == "two"
