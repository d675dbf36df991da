"""Ensembles through the router's real doors, with puppets for their models."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from protos import inference_pb2 as pb
from protos import worker_pb2
from services.core.errors import InvalidRequestError
from services.core.model_config import DynamicBatching, ModelConfig
from services.core.model_config_scheduling import QueuePolicy
from services.core.shared_memory_region import REGION_PARAMETER
from services.router.admission import Admission
from services.router.route_table import Route, RouteTable
from tests.unit.router.ensembles import DIAMOND, ensemble, step
from tests.unit.router.routes import add_sub, add_sub_request, route
from tests.unit.router.running import PuppetWorker, RunningRouter, running_router
from tests.unit.router.summing import add, raw, sums, value_of

ENSEMBLE = 100


def member(name: str, **fields: object) -> ModelConfig:
    """Return a model that adds; INPUT1 may be left out."""
    config = add_sub(name, **fields)
    return replace(
        config, inputs=(config.inputs[0], replace(config.inputs[1], optional=True))
    )


def table(*members: ModelConfig, ens: ModelConfig, first: int = 11) -> RouteTable:
    routes: list[Route] = [
        route(each, generation=first + i) for i, each in enumerate(members)
    ]
    return RouteTable.of([*routes, route(ens, generation=ENSEMBLE)])


def ask(value: int = 1, **fields: object) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(
        model_name="ens",
        inputs=[
            pb.ModelInferRequest.InferInputTensor(
                name="A", datatype="INT32", shape=[1, 16]
            )
        ],
        raw_input_contents=[raw(value)],
        **fields,  # type: ignore[arg-type]
    )


def refuse(worker: PuppetWorker, message: str) -> None:
    worker.next_batch()
    error = worker_pb2.ReplyError(
        code=grpc.StatusCode.INVALID_ARGUMENT.value[0], message=message
    )
    worker.answers.put(worker_pb2.BatchResponse(reply=[worker_pb2.Reply(error=error)]))


def result_of(future: object) -> int:
    response = future.result(timeout=5)  # type: ignore[attr-defined]
    return value_of(response.raw_output_contents[0])


def failure_of(future: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        future.result(timeout=5)  # type: ignore[attr-defined]
    return caught.value.code(), caught.value.details() or ""


CHAIN = ensemble(
    step("first", {"INPUT0": "A"}, {"OUTPUT0": "M"}),
    step("second", {"INPUT0": "M", "INPUT1": "A"}, {"OUTPUT0": "Z"}),
)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RunningRouter]:
    with running_router(tmp_path) as router:
        yield router


@pytest.fixture
def chain(router: RunningRouter) -> tuple[RunningRouter, PuppetWorker, PuppetWorker]:
    router.apply(table(member("first"), member("second"), ens=CHAIN))
    return router, router.worker(11), router.worker(12)


Chain = tuple[RunningRouter, PuppetWorker, PuppetWorker]


def test_each_step_gets_what_the_one_before_it_returned(chain: Chain) -> None:
    router, first, second = chain
    future = router.infer(ask(5, id="seven"))
    (one,) = add(first)
    (two,) = add(second)
    response = future.result(timeout=5)
    assert (one.model_name, one.id) == ("first", "seven")
    assert list(map(value_of, two.raw_input_contents)) == [6, 5]
    assert (response.model_name, response.model_version, response.id) == (
        "ens",
        "1",
        "seven",
    )
    assert [output.name for output in response.outputs] == ["Z"]
    assert value_of(response.raw_output_contents[0]) == 12


def test_the_branches_of_a_diamond_run_at_the_same_time(router: RunningRouter) -> None:
    names = ("simple", "right", "left", "top")
    router.apply(table(*map(member, names), ens=DIAMOND))
    simple, right, left, top = (router.worker(i) for i in (11, 12, 13, 14))
    future = router.infer(ask(1))
    add(top)
    held = left.next_batch()
    add(right)
    left.answers.put(sums(held))
    add(simple)
    assert result_of(future) == 3 + 3 + 1


def until_waiting(router: RunningRouter, model: str, count: int) -> None:
    while router.inference.waiting().get((model, 1), 0) < count:
        router.on_loop(lambda: None)


def test_steps_of_different_requests_share_a_batch(chain: Chain) -> None:
    router, first, second = chain
    futures = [router.infer(ask(0))]
    held = first.next_batch()
    futures += [router.infer(ask(i)) for i in (1, 2, 3)]
    until_waiting(router, "first", 3)
    first.answers.put(sums(held))
    held = second.next_batch()
    assert len(add(first)) == 3
    until_waiting(router, "second", 3)
    second.answers.put(sums(held))
    assert len(add(second)) == 3
    assert sorted(map(result_of, futures)) == [2, 4, 6, 8]


def test_the_error_of_a_step_answers_at_once_and_the_rest_is_dropped(
    router: RunningRouter,
) -> None:
    names = ("simple", "right", "left", "top")
    router.apply(table(*map(member, names), ens=DIAMOND))
    _, right, left, top = (router.worker(i) for i in (11, 12, 13, 14))
    future = router.infer(ask())
    add(top)
    held = left.next_batch()
    refuse(right, "no")
    assert failure_of(future) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "in ensemble 'ens', no",
    )
    left.answers.put(sums(held))
    again = router.infer(ask())
    add(top)
    add(left)
    refuse(right, "still no")
    assert failure_of(again)[1] == "in ensemble 'ens', still no"


def test_a_step_that_its_model_refuses_fails_the_request(
    router: RunningRouter,
) -> None:
    strict = add_sub("second", max_batch_size=8)
    lonely = ensemble(
        step("first", {"INPUT0": "A"}, {"OUTPUT0": "M"}),
        step("second", {"INPUT0": "M"}, {"OUTPUT0": "Z"}),
    )
    router.apply(table(member("first"), strict, ens=lonely))
    first, _ = router.worker(11), router.worker(12)
    future = router.infer(ask(id="seven"))
    add(first)
    code, text = failure_of(future)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith(
        "in ensemble 'ens', [request id: seven] expected 2 inputs but got 1 inputs for "
        "model 'second'"
    )


def test_a_full_queue_at_a_step_answers_at_once(router: RunningRouter) -> None:
    policy = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=1))
    small = member("second", dynamic_batching=policy, max_batch_size=8)
    router.apply(table(member("first"), small, ens=CHAIN))
    first, second = router.worker(11), router.worker(12)
    running = router.infer(ask(1))
    add(first)
    held = second.next_batch()
    waiting = router.infer(ask(2))
    add(first)
    refused = router.infer(ask(3))
    add(first)
    code, text = failure_of(refused)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "Exceeds maximum queue size" in text
    second.answers.put(sums(held))
    add(second)
    assert (result_of(running), result_of(waiting)) == (4, 6)


def test_a_client_that_leaves_takes_its_steps_with_it(chain: Chain) -> None:
    router, first, _ = chain
    router.infer(ask(1))
    held = first.next_batch()
    gone = router.infer(ask(2, id="gone"))
    router.on_loop(lambda: None)
    gone.cancel()
    late = router.infer(ask(3), timeout=0.05)
    assert failure_of(late)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    router.infer(ask(4, id="last"))
    while router.inference.waiting() != {("first", 1): 1}:
        router.on_loop(lambda: None)
    first.answers.put(sums(held))
    assert [request.id for request in add(first)] == ["last"]


def test_only_what_is_asked_for_is_run_and_returned(router: RunningRouter) -> None:
    two = ensemble(
        step("first", {"INPUT0": "A"}, {"OUTPUT0": "Y", "OUTPUT1": "M"}),
        step("second", {"INPUT0": "M"}, {"OUTPUT0": "Z"}),
        outputs="YZ",
    )
    router.apply(table(member("first"), member("second"), ens=two))
    first, _ = router.worker(11), router.worker(12)
    wanted = pb.ModelInferRequest.InferRequestedOutputTensor(name="Y")
    future = router.infer(ask(1, outputs=[wanted]))
    (request,) = add(first)
    assert [output.name for output in request.outputs] == ["OUTPUT0"]
    assert [output.name for output in future.result(timeout=5).outputs] == ["Y"]


def test_an_ensemble_may_be_a_step(router: RunningRouter) -> None:
    outer = ensemble(
        step("ens", {"A": "A"}, {"Z": "M"}),
        step("first", {"INPUT0": "M"}, {"OUTPUT0": "Z"}),
        name="outer",
    )
    inner = table(member("first"), member("second"), ens=CHAIN)
    router.apply(RouteTable.of([*inner.routes(), route(outer, generation=200)]))
    first, second = router.worker(11), router.worker(12)
    request = ask(1)
    request.model_name = "outer"
    future = router.infer(request)
    add(first)
    add(second)
    add(first)
    assert result_of(future) == 5


def test_the_error_of_a_nested_ensemble_names_both(router: RunningRouter) -> None:
    outer = ensemble(step("ens", {"A": "A"}, {"Z": "Z"}), name="outer")
    inner = table(member("first"), member("second"), ens=CHAIN)
    router.apply(RouteTable.of([*inner.routes(), route(outer, generation=200)]))
    first = router.worker(11)
    router.worker(12)
    request = ask(1)
    request.model_name = "outer"
    future = router.infer(request)
    refuse(first, "no")
    assert failure_of(future)[1] == "in ensemble 'outer', in ensemble 'ens', no"


def test_a_request_that_has_begun_ends_on_the_versions_it_began_with(
    chain: Chain,
) -> None:
    router, first, old = chain
    future = router.infer(ask(1))
    held = first.next_batch()
    members = (member("first"), member("second"))
    routes = [
        route(members[0], generation=11),
        route(members[1], generation=13),
        route(CHAIN, generation=ENSEMBLE),
    ]
    applied = router.apply(RouteTable.of(routes))
    new = router.worker(13)
    late = router.infer(ask(2))
    first.answers.put(sums(held))
    assert not applied.is_set()
    add(old)
    assert result_of(future) == 4
    assert applied.wait(30)
    add(first)
    add(new)
    assert result_of(late) == 6


def test_a_removed_ensemble_and_its_members_answer_who_was_admitted(
    chain: Chain,
) -> None:
    router, first, second = chain
    future = router.infer(ask(1))
    held = first.next_batch()
    applied = router.apply(RouteTable.of([], names=["ens", "first", "second"]))
    assert "'ens' has no available versions" in failure_of(router.infer(ask()))[1]
    first.answers.put(sums(held))
    add(second)
    assert result_of(future) == 4
    assert applied.wait(30)


def test_an_ensemble_is_ready_when_all_its_models_have_instances(
    router: RunningRouter,
) -> None:
    router.apply(table(member("first"), member("second"), ens=CHAIN))
    assert not router.inference.is_model_ready("ens", "")
    add_one = router.worker(11)
    future = router.infer(ask(1))
    add(add_one)
    assert not router.inference.is_model_ready("ens", "")
    second = router.worker(12)
    add(second)
    assert result_of(future) == 4
    assert router.inference.is_model_ready("ens", "")


def test_a_stream_answers_ensembles_too(chain: Chain) -> None:
    router, first, second = chain
    responses = router.stream(iter([ask(1, id="a"), ask(2, id="b")]))

    def serve() -> None:
        for worker in (first, second):
            rows = 0
            while rows < 2:
                rows += len(add(worker))

    serving = threading.Thread(target=serve)
    serving.start()
    got = {
        each.infer_response.id: value_of(each.infer_response.raw_output_contents[0])
        for each in responses
    }
    serving.join(timeout=5)
    assert got == {"a": 4, "b": 6}


def test_an_ensemble_counts_its_own_requests(chain: Chain) -> None:
    router, first, second = chain
    good = router.infer(ask(1))
    add(first)
    add(second)
    result_of(good)
    bad = router.infer(ask(1))
    refuse(first, "no")
    failure_of(bad)
    router.on_loop(lambda: None)
    counted = router.inference.statistics.of("ens", 1)
    assert (counted.inference_count, counted.execution_count) == (1, 1)
    assert counted.success.count == 1
    assert counted.compute.count == 1
    assert counted.others["fail.count"] == 1
    assert counted.others["fail.BACKEND"] == 1


def test_an_ensemble_counts_the_times_of_streamed_requests(
    router: RunningRouter,
) -> None:
    streams = table(member("first"), member("second", decoupled=True), ens=CHAIN)
    router.apply(streams)
    first, second = router.worker(11), router.worker(12)
    responses = router.stream(iter([ask(1)]))
    add(first)
    (reply,) = sums(second.next_batch()).reply
    last = worker_pb2.StreamedReply(final=True, reply=reply)
    message = worker_pb2.BatchResponse(streamed=[last])
    second.stream.send(message.SerializeToString())
    second.answers.put(worker_pb2.BatchResponse(reply=[worker_pb2.Reply()]))
    assert next(responses).infer_response.outputs
    router.on_loop(lambda: None)
    counted = router.inference.statistics.of("ens", 1)
    assert (counted.success.count, counted.compute.count) == (1, 1)
    assert counted.success.ns == counted.queue.ns + sum(counted.compute.ns)


def test_nothing_more_is_submitted_once_a_step_is_refused(
    router: RunningRouter,
) -> None:
    both = ensemble(
        step("second", {"INPUT0": "A"}, {"OUTPUT0": "Y"}),
        step("first", {"INPUT0": "A"}, {"OUTPUT0": "Z"}),
        outputs="YZ",
    )
    router.apply(table(member("first"), add_sub("second"), ens=both))
    first, _ = router.worker(11), router.worker(12)
    assert "expected 2 inputs" in failure_of(router.infer(ask(1)))[1]
    direct = ask(1, id="direct")
    direct.model_name, direct.inputs[0].name = "first", "INPUT0"
    router.infer(direct)
    assert [request.id for request in add(first)] == ["direct"]


def test_a_client_that_left_is_not_waited_for(chain: Chain) -> None:
    router, first, _ = chain
    late = router.infer(ask(1), timeout=0.05)
    held = first.next_batch()
    assert failure_of(late)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    first.answers.put(sums(held))
    applied = router.apply(RouteTable.of([], names=["ens"]))
    assert applied.wait(30)


def test_an_ensemble_whose_model_is_not_routed_refuses(router: RunningRouter) -> None:
    router.apply(
        RouteTable.of(
            [route(member("first"), generation=11), route(CHAIN, generation=ENSEMBLE)]
        )
    )
    first = router.worker(11)
    assert failure_of(router.infer(ask()))[0] is grpc.StatusCode.UNAVAILABLE
    direct = ask(1)
    direct.model_name, direct.inputs[0].name = "first", "INPUT0"
    future = router.infer(direct)
    add(first)
    future.result(timeout=5)
    assert not router.inference.is_model_ready("ens", "")


def classes_of(name: str) -> pb.ModelInferRequest.InferRequestedOutputTensor:
    wanted = pb.ModelInferRequest.InferRequestedOutputTensor(name=name)
    wanted.parameters["classification"].int64_param = 2
    return wanted


def test_the_form_of_an_output_is_the_wish_to_the_step_that_writes_it(
    chain: Chain,
) -> None:
    router, first, second = chain
    router.infer(ask(1, outputs=[classes_of("Z")]))
    (one,) = add(first)
    (two,) = add(second)
    assert not one.outputs[0].parameters
    assert two.outputs[0].parameters["classification"].int64_param == 2


def test_an_output_that_a_step_reads_cannot_have_another_form(
    router: RunningRouter,
) -> None:
    read = ensemble(
        step("first", {"INPUT0": "A"}, {"OUTPUT0": "Y"}),
        step("second", {"INPUT0": "Y"}, {"OUTPUT0": "Z"}),
        outputs="YZ",
    )
    router.apply(table(member("first"), member("second"), ens=read))
    refused = router.infer(ask(1, outputs=[classes_of("Y"), classes_of("Z")]))
    assert "output 'Y' of ensemble 'ens' is an input" in failure_of(refused)[1]


def test_a_step_is_judged_by_the_version_it_goes_to() -> None:
    current = route(add_sub(max_batch_size=8), generation=2)
    pinned = route(add_sub(max_batch_size=2), generation=1)
    admission = Admission(RouteTable.of([current]))
    large = add_sub_request(rows=4).SerializeToString()
    admission.admit(large)
    with pytest.raises(InvalidRequestError, match="must be <= 2"):
        admission.admit_to(pinned, large)


def test_what_an_old_version_takes_is_not_learned_for_the_new_one() -> None:
    current = route(add_sub(max_batch_size=2), generation=2)
    pinned = route(add_sub(max_batch_size=8), generation=1)
    admission = Admission(RouteTable.of([current]))
    large = add_sub_request(rows=4).SerializeToString()
    assert admission.admit_to(pinned, large)[0].rows == 4
    with pytest.raises(InvalidRequestError, match="must be <= 2"):
        admission.admit(large)


def test_tensors_in_shared_memory_go_on_to_the_steps() -> None:
    request = add_sub_request()
    for tensor in request.inputs:
        tensor.parameters[REGION_PARAMETER].string_param = "0:64::key"
    wanted = request.outputs.add(name="OUTPUT0")
    wanted.parameters[REGION_PARAMETER].string_param = "64:64::key"
    del request.raw_input_contents[:]
    table = RouteTable.of([route(add_sub())])
    body = request.SerializeToString()
    _, normal = Admission(table).admit_to(route(add_sub()), body)
    assert pb.ModelInferRequest.FromString(normal) == request
    with pytest.raises(InvalidRequestError, match="is reserved"):
        Admission(table).admit(body)


def test_a_decoupled_step_wants_a_stream_unless_it_is_not_needed(
    router: RunningRouter,
) -> None:
    both = ensemble(
        step("first", {"INPUT0": "A"}, {"OUTPUT0": "Y"}),
        step("second", {"INPUT0": "A"}, {"OUTPUT0": "Z"}),
        outputs="YZ",
    )
    inner = table(member("first"), member("second", decoupled=True), ens=both)
    outer = ensemble(step("ens", {"A": "A"}, {"Z": "Z"}), name="outer")
    router.apply(RouteTable.of([*inner.routes(), route(outer, generation=200)]))
    first = router.worker(11)
    nested = ask()
    nested.model_name = "outer"
    for request in (ask(), nested):
        code, text = failure_of(router.infer(request))
        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert text.endswith("support models with decoupled transaction policy")
    wanted = pb.ModelInferRequest.InferRequestedOutputTensor(name="Y")
    future = router.infer(ask(1, outputs=[wanted]))
    add(first)
    assert result_of(future) == 2


def test_a_stopping_router_finishes_ensembles_that_have_begun(chain: Chain) -> None:
    router, first, second = chain
    future = router.infer(ask(1))
    held = first.next_batch()
    router.on_loop(lambda: setattr(router.inference, "stopping", True))
    assert failure_of(router.infer(ask()))[0] is grpc.StatusCode.UNAVAILABLE
    first.answers.put(sums(held))
    assert not router.inference.is_quiet
    add(second)
    assert result_of(future) == 4
