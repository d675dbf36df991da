"""The response cache that routers share, with a control that is a puppet."""

import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos import control_pb2, control_pb2_grpc
from protos import inference_pb2 as pb
from services.core.completion_queue import Reactor
from services.router.response_cache import pack, unpack
from services.router.route_table import RouteTable
from services.router.shared_responses import SharedResponses
from tests.unit.router.routes import add_sub, add_sub_request, route
from tests.unit.router.running import RunningRouter, running_router

CACHED = add_sub("cached", response_cache_enabled=True)


class PuppetControl(control_pb2_grpc.ResponseControlServicer):
    """Keeps responses, as quickly as the test lets it."""

    def __init__(self, directory: Path) -> None:
        self.target = f"unix:{directory}/control.sock"
        self.responses: dict[bytes, bytes] = {}
        self.lookups = 0
        self.looked_up = threading.Semaphore(0)
        self.kept = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.go_on.set()
        self.is_away = False
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        control_pb2_grpc.add_ResponseControlServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.target)
        self._server.start()

    def Find(self, request: control_pb2.FindResponse, context: Any) -> Any:  # noqa: ANN401
        self.lookups += 1
        self.looked_up.release()
        self.go_on.wait(10)
        if self.is_away:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Redis is away")
        found = self.responses.get(request.key)
        return control_pb2.FoundResponse(
            is_found=found is not None, response=found or b""
        )

    def Keep(self, request: control_pb2.KeepResponse, context: Any) -> Any:  # noqa: ANN401
        del context
        self.responses[request.key] = request.response
        self.kept.release()
        return control_pb2.KeptResponse(evicted=3)

    def stop(self) -> None:
        self.go_on.set()
        self._server.stop(0)


@pytest.fixture
def control(tmp_path: Path) -> Iterator[PuppetControl]:
    control = PuppetControl(tmp_path)
    yield control
    control.stop()


@pytest.fixture
def router(tmp_path: Path, control: PuppetControl) -> Iterator[RunningRouter]:
    made: list[SharedResponses] = []

    def cache(reactor: Reactor) -> SharedResponses:
        made.append(SharedResponses(control.target, reactor))
        return made[0]

    with running_router(tmp_path, cache) as router:
        router.apply(RouteTable.of([route(CACHED, generation=7)]))
        yield router
    made[0].close()


def ask(identity: str = "", value: int = 0) -> pb.ModelInferRequest:
    request = add_sub_request(model_name="cached", id=identity)
    request.raw_input_contents[0] = bytes((value,)) * 64
    return request


def test_what_one_router_has_kept_answers_the_next_request(
    router: RunningRouter, control: PuppetControl
) -> None:
    worker = router.worker(7)
    first = router.infer(ask("one"))
    worker.answer_next()
    assert first.result(timeout=5).id == "one"
    assert control.kept.acquire(timeout=5)
    assert router.infer(ask("two")).result(timeout=5).id == "two"
    router.on_loop(lambda: None)
    counted = router.inference.statistics.of("cached", 1)
    assert (counted.inference_count, counted.success.count) == (1, 2)
    assert counted.others["cache_hit.count"] == 1
    assert counted.others["cache_miss.count"] == 1
    cache = router.inference.cache
    assert cache is not None
    assert (cache.hits, cache.misses, cache.evictions) == (1, 1, 3)


def test_a_control_that_cannot_answer_is_a_miss_and_then_left_alone(
    router: RunningRouter, control: PuppetControl
) -> None:
    control.is_away = True
    worker = router.worker(7)
    for number in range(5):
        answer = router.infer(ask(str(number)))
        worker.answer_next()
        assert answer.result(timeout=5).id == str(number)
    # Five requests take less than a second; on a busy machine a little more.
    assert control.lookups < 5
    assert not control.responses


def test_a_lookup_is_waited_for_only_so_long(
    router: RunningRouter, control: PuppetControl
) -> None:
    control.go_on.clear()
    worker = router.worker(7)
    answer = router.infer(ask("late"))
    worker.answer_next()
    assert answer.result(timeout=5).id == "late"


def test_a_client_that_leaves_during_a_lookup_is_not_executed(
    router: RunningRouter, control: PuppetControl
) -> None:
    control.go_on.clear()
    worker = router.worker(7)
    gone = router.infer(ask("gone"))
    assert control.looked_up.acquire(timeout=5)
    gone.cancel()
    other = router.infer(ask("other", value=1))
    assert [request.id for request in worker.answer_next()] == ["other"]
    assert other.result(timeout=5).id == "other"
    counted = router.inference.statistics.of("cached", 1)
    assert counted.others["fail.CANCELED"] == 1


def test_a_version_is_not_let_go_while_a_request_to_it_is_looked_up(
    router: RunningRouter, control: PuppetControl
) -> None:
    control.go_on.clear()
    worker = router.worker(7)
    answer = router.infer(ask("early"))
    assert control.looked_up.acquire(timeout=5)
    applied = router.apply(RouteTable.of([route(add_sub("other"), generation=8)]))
    router.worker(8)
    assert not applied.is_set()
    worker.answer_next()
    assert answer.result(timeout=5).id == "early"
    assert applied.wait(30)


def test_a_packed_response_is_anothers_answer_with_its_own_id() -> None:
    response = pb.ModelInferResponse(model_name="m", model_version="1", id="one")
    response.outputs.add(name="OUT", datatype="INT32", shape=[1])
    response.raw_output_contents.append(b"1234")
    identity = pb.ModelInferRequest(id="two").SerializeToString()
    found = pb.ModelInferResponse.FromString(
        unpack(pack(response.SerializeToString()), identity)
    )
    response.id = "two"
    assert found == response
