"""Requests that arrive together are admitted together, and none waits for it."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from protos import worker_pb2
from services.core.completion_queue import Timer
from services.router.dispatcher import InstanceStream
from services.router.inference import Inference
from services.router.pending_request import Taker
from services.router.route_table import RouteTable
from tests.unit.router.routes import Request, add_sub, add_sub_request, route
from tests.unit.router.stage import PuppetReactor, PuppetRequest

MOST_ARRIVED = 16


class Arrival(PuppetRequest):
    """A request whose body has just come."""

    metadata: tuple[()] = ()
    scheduler: Taker | None = None

    @property
    def watched(self) -> list[object]:
        return [each for each in self.outcome if each == "watched"]

    def watch(self) -> None:
        self.outcome.append("watched")


class PuppetCall:
    """A native call on which nothing ever happens."""

    def start_server_batch(self, operations: object, tag: object) -> None:
        """Begin, and never complete."""


class LoopReactor(PuppetReactor):
    def call_roughly_at(self, when_ns: int, callback: Callable[[], None]) -> Timer:
        return self.call_at(when_ns, callback)


def arrival(name: str, model: str = "simple") -> Arrival:
    body = add_sub_request(id=name, model_name=model).SerializeToString()
    return Arrival(name, body=body)


@pytest.fixture
def reactor() -> LoopReactor:
    return LoopReactor()


@pytest.fixture
def inference(reactor: LoopReactor) -> Inference:
    inference = Inference(reactor, lambda: None)  # type: ignore[arg-type]
    inference.apply(RouteTable.of([route(add_sub())]), lambda: None)
    return inference


def test_nothing_is_admitted_before_all_that_has_arrived_is_here(
    reactor: LoopReactor, inference: Inference
) -> None:
    requests = [arrival("a"), arrival("b")]
    for each in requests:
        inference.arrive(each)
    assert inference.waiting() == {}
    reactor.drain()
    assert inference.waiting() == {("simple", 1): 2}


def test_under_a_stream_of_requests_that_never_pauses_they_are_admitted_at_times(
    inference: Inference,
) -> None:
    for number in range(MOST_ARRIVED - 1):
        inference.arrive(arrival(str(number)))
    assert inference.waiting() == {}
    inference.arrive(arrival("last"))
    assert inference.waiting() == {("simple", 1): MOST_ARRIVED}


def test_a_client_that_has_left_meanwhile_is_not_admitted(
    reactor: LoopReactor, inference: Inference
) -> None:
    gone, there = arrival("gone"), arrival("there")
    inference.arrive(gone)
    inference.arrive(there)
    gone.open = False
    reactor.drain()
    assert inference.waiting() == {("simple", 1): 1}


def test_a_request_that_is_refused_leaves_its_neighbours_alone(
    reactor: LoopReactor, inference: Inference
) -> None:
    wrong, right = arrival("wrong", model="unheard"), arrival("right")
    inference.arrive(wrong)
    inference.arrive(right)
    reactor.drain()
    assert len(wrong.outcome) == 1
    assert inference.waiting() == {("simple", 1): 1}


def test_an_error_of_ours_costs_one_request(
    reactor: LoopReactor, inference: Inference
) -> None:
    odd, right = arrival("odd"), arrival("right")
    odd.body = None  # type: ignore[assignment]
    inference.arrive(odd)
    inference.arrive(right)
    reactor.drain()
    assert odd.outcome == [(13, "internal error")]
    assert inference.waiting() == {("simple", 1): 1}


def test_what_has_arrived_rides_along_when_an_instance_becomes_free(
    reactor: LoopReactor, inference: Inference, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(InstanceStream, "send", lambda _, message: sent.append(message))
    hello = worker_pb2.InstanceHello(generation=1).SerializeToString()
    metadata = (SimpleNamespace(key="nereid-instance-bin", value=hello),)
    stream = inference.dispatcher.accept(PuppetCall(), "Serve", metadata)
    inference.arrive(arrival("first"))
    reactor.drain()
    reactor.drain()
    inference.arrive(arrival("second"))
    answer = worker_pb2.BatchResponse(reply=[worker_pb2.Reply(response=b"1")])
    stream.received(answer.SerializeToString())
    batches = [worker_pb2.BatchRequest.FromString(each).request for each in sent]
    ids = [[Request.FromString(one).id for one in batch] for batch in batches]
    assert ids == [["first"], ["second"]]


def test_who_waits_long_is_watched(reactor: LoopReactor, inference: Inference) -> None:
    request = arrival("a")
    inference.arrive(request)
    reactor.drain()
    reactor.fire()
    assert request.watched == []
    reactor.fire()
    assert request.watched == ["watched"]
