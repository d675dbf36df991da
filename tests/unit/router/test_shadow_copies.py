"""Copies of requests to a shadow version, through the router's real doors."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from protos import inference_pb2 as pb
from protos import worker_pb2
from services.core.model_config import DynamicBatching
from services.core.shared_memory_region import REGION_PARAMETER
from services.core.statistics_fields import ShadowOutcome, shadow_field
from services.router.admission import Admission
from services.router.route_table import RouteTable, TrafficSplit
from services.router.shadow_copies import CopyAllowance, ShadowCopies
from tests.unit.router.routes import add_sub, add_sub_request, route
from tests.unit.router.running import PuppetWorker, RunningRouter, running_router
from tests.unit.router.stage import PuppetRequest, staged

PATIENCE_S = 30.0
PLAIN = DynamicBatching()


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RunningRouter]:
    with running_router(tmp_path) as router:
        router.apply(table())
        yield router


def table(first: int = 1, batching: DynamicBatching = PLAIN) -> RouteTable:
    """Return a table in which version 2, of generation ``first`` + 1, is the shadow."""
    config = add_sub(dynamic_batching=batching)
    routes = [
        route(config, version, generation=first + version - 1) for version in (1, 2)
    ]
    split = TrafficSplit(weights={}, shadow_version=2)
    return RouteTable.of(routes, splits={"simple": split})


def workers(router: RunningRouter, first: int = 1) -> list[PuppetWorker]:
    """Return one of either version, both in service."""
    both = [router.worker(first), router.worker(first + 1)]
    for version in "12":
        assert router.eventually(
            lambda: router.inference.is_model_ready("simple", version)  # noqa: B023
        )
    return both


def counted(router: RunningRouter) -> dict[str, int]:
    others = router.inference.statistics.of("simple", 2).others
    return {
        name.removeprefix("shadow."): count
        for name, count in others.items()
        if name.startswith("shadow.")
    }


def settled(router: RunningRouter, **wanted: int) -> bool:
    """Wait until so many copies have ended so."""
    return router.eventually(lambda: counted(router) == wanted)


def replied(worker: PuppetWorker, output: str) -> None:
    """Answer the batch that is held, with an output of this name."""
    tensor = pb.ModelInferResponse.InferOutputTensor(name=output, datatype="INT32")
    response = pb.ModelInferResponse(model_name="simple", outputs=[tensor])
    reply = worker_pb2.Reply(response=response.SerializeToString())
    worker.answers.put(worker_pb2.BatchResponse(reply=[reply]))


def test_the_client_has_its_answer_before_a_copy_is_made(
    router: RunningRouter,
) -> None:
    primary, shadow = workers(router)
    asked = router.infer(add_sub_request(id="a"))
    assert [each.model_version for each in primary.next_batch()] == ["1"]
    assert shadow.batches.empty()
    replied(primary, "OUTPUT0")
    assert asked.result(timeout=PATIENCE_S).outputs[0].name == "OUTPUT0"
    # The shadow holds its copy, and that disturbs nobody.
    (copy,) = shadow.next_batch()
    assert (copy.model_version, copy.id) == ("2", "a")
    assert copy.raw_input_contents == add_sub_request().raw_input_contents
    again = router.infer(add_sub_request(id="b"))
    primary.next_batch()
    replied(primary, "OUTPUT0")
    again.result(timeout=PATIENCE_S)
    replied(shadow, "OUTPUT0")
    shadow.next_batch()
    replied(shadow, "OUTPUT1")
    assert settled(router, matched=1, differed=1)


def test_a_request_that_names_its_version_is_not_copied(
    router: RunningRouter,
) -> None:
    primary, shadow = workers(router)
    asked = router.infer(add_sub_request(model_version="1"))
    primary.answer_next()
    asked.result(timeout=PATIENCE_S)
    named = router.infer(add_sub_request(model_version="2", id="own"))
    assert [each.id for each in shadow.answer_next()] == ["own"]
    named.result(timeout=PATIENCE_S)
    assert counted(router) == {}


def test_a_request_that_failed_is_not_copied_and_a_copy_that_fails_is_counted(
    router: RunningRouter,
) -> None:
    primary, shadow = workers(router)
    error = worker_pb2.Reply(error=worker_pb2.ReplyError(code=3, message="no"))
    asked = router.infer(add_sub_request())
    primary.next_batch()
    primary.answers.put(worker_pb2.BatchResponse(reply=[error]))
    with pytest.raises(grpc.RpcError):
        asked.result(timeout=PATIENCE_S)
    asked = router.infer(add_sub_request())
    primary.answer_next()
    asked.result(timeout=PATIENCE_S)
    shadow.next_batch()
    shadow.answers.put(worker_pb2.BatchResponse(reply=[error]))
    assert settled(router, failed=1)


def test_what_the_shadow_does_not_admit_has_failed(router: RunningRouter) -> None:
    routes = [
        route(add_sub(), 1, generation=1),
        route(add_sub(inputs=add_sub().inputs[:1]), 2, generation=3),
    ]
    split = TrafficSplit(weights={}, shadow_version=2)
    router.apply(RouteTable.of(routes, splits={"simple": split}))
    router.worker(3)
    primary = router.worker(1)
    assert router.eventually(lambda: router.inference.is_model_ready("simple", "2"))
    asked = router.infer(add_sub_request())
    primary.answer_next()
    asked.result(timeout=PATIENCE_S)
    assert settled(router, failed=1)


def test_without_an_instance_of_the_shadow_copies_are_dropped(
    router: RunningRouter,
) -> None:
    primary = router.worker(1)
    asked = router.infer(add_sub_request())
    primary.answer_next()
    asked.result(timeout=PATIENCE_S)
    assert settled(router, dropped=1)


def test_a_slow_shadow_gets_no_more_than_may_wait(router: RunningRouter) -> None:
    allowance = router.inference._takers._shadows._allowance
    allowance.most_copies = 2
    primary, shadow = workers(router)
    for _ in range(5):
        asked = router.infer(add_sub_request())
        primary.answer_next()
        asked.result(timeout=PATIENCE_S)
    assert settled(router, dropped=3)
    # What the shadow has got is as much as ever, and room is given back.
    shadow.answer_next()
    shadow.answer_next()
    assert settled(router, dropped=3, matched=2)
    asked = router.infer(add_sub_request())
    primary.answer_next()
    asked.result(timeout=PATIENCE_S)
    shadow.answer_next()
    assert settled(router, dropped=3, matched=3)


def test_a_copy_has_the_lowest_priority_there_is(router: RunningRouter) -> None:
    batching = DynamicBatching(priority_levels=3, default_priority_level=1)
    router.apply(table(11, batching))
    primary, shadow = workers(router, 11)
    held = router.infer(add_sub_request(model_version="2", id="held"))
    shadow.next_batch()
    asked = router.infer(add_sub_request(id="copied"))
    primary.answer_next()
    asked.result(timeout=PATIENCE_S)
    assert router.eventually(lambda: router.inference.waiting().get(("simple", 2)) == 1)
    urgent = router.infer(add_sub_request(rows=8, model_version="2", id="urgent"))
    assert router.eventually(lambda: router.inference.waiting().get(("simple", 2)) == 2)
    shadow.answer(add_sub_request(id="held"))
    assert [each.id for each in shadow.answer_next()] == ["urgent"]
    assert [each.id for each in shadow.answer_next()] == ["copied"]
    held.result(timeout=PATIENCE_S)
    urgent.result(timeout=PATIENCE_S)


def test_a_client_that_leaves_takes_its_request_along(router: RunningRouter) -> None:
    primary, shadow = workers(router)
    first = router.infer(add_sub_request(id="first"))
    primary.next_batch()
    leaving = router.infer(add_sub_request(id="leaving"))
    assert router.eventually(lambda: router.inference.waiting().get(("simple", 1)) == 1)
    leaving.cancel()
    assert router.eventually(lambda: not router.inference.waiting())
    primary.answer(add_sub_request(id="first"))
    first.result(timeout=PATIENCE_S)
    assert [each.id for each in shadow.answer_next()] == ["first"]


def test_an_allowance_bounds_number_and_bytes() -> None:
    allowance = CopyAllowance(most_copies=2, most_bytes=10)
    assert allowance.take(6)
    assert not allowance.take(5)
    assert allowance.take(4)
    assert not allowance.take(0)
    allowance.give_back(6)
    assert allowance.take(6)


def test_what_lies_in_the_memory_of_a_client_is_not_copied() -> None:
    stage = staged(add_sub())
    copies = ShadowCopies(
        stage.scheduler,
        0.0,
        admission=Admission(),
        allowance=CopyAllowance(),
        reactor=stage.reactor,  # type: ignore[arg-type]
        pool=None,
        now_ns=lambda: 0,
    )
    instance = stage.instance()
    body = add_sub_request().SerializeToString()
    copies.make(PuppetRequest("here", body=body), b"")
    stage.reactor.drain()
    stage.reactor.drain()
    assert len(instance.held) == 1
    elsewhere = add_sub_request()
    elsewhere.outputs.add(name="OUTPUT0").parameters[REGION_PARAMETER].string_param = ""
    copies.make(PuppetRequest("there", body=elsewhere.SerializeToString()), b"")
    stage.reactor.drain()
    assert stage.scheduler.statistics.others[shadow_field(ShadowOutcome.DROPPED)] == 1
    assert (stage.scheduler.waiting, len(instance.held)) == (0, 1)
