"""Traced requests through the router's real doors, with puppets for their models."""

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from protos import inference_pb2 as pb
from protos import worker_pb2
from services.router.request_trace import RequestTrace
from services.router.route_table import RouteTable
from services.router.trace_arrival import arrival_of
from services.router.trace_sampler import TraceScope, TraceSettings
from services.router.tracer import Tracer
from tests.unit.router.ensembles import ensemble, step
from tests.unit.router.routes import add_sub, add_sub_request, route
from tests.unit.router.running import PuppetWorker, RunningRouter, running_router
from tests.unit.router.summing import add, raw, value_of

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EXECUTED = (
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
)


class Outlet:
    """Hands traces to the test's thread."""

    def __init__(self) -> None:
        self.traces: SimpleQueue[RequestTrace] = SimpleQueue()

    def sampled(self, session: int) -> None:
        pass

    def ended(self, scope: TraceScope, trace: RequestTrace) -> None:
        del scope
        self.traces.put(trace)

    def next(self) -> RequestTrace:
        return self.traces.get(timeout=5)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RunningRouter]:
    with running_router(tmp_path) as router:
        yield router


def traced(router: RunningRouter, *, rate: int = 1) -> Outlet:
    """Have the requests of ``router`` traced from now on."""
    outlet = Outlet()
    tracer = Tracer(outlet, arrival_of)
    scope = TraceScope(session=1, rate=rate, tensors=True)
    tracer.follow(TraceSettings(overall=scope, follows_callers=rate == 0))
    router.on_loop(lambda: router.inference.trace_by(tracer))
    return outlet


def names_of(trace: RequestTrace) -> list[str]:
    return [name for name, _ in trace.timestamps]


def test_a_unary_call_is_traced_from_its_message_to_its_answer(
    router: RunningRouter,
) -> None:
    outlet = traced(router)
    worker = router.worker()
    future = router.infer(add_sub_request(id="r7"))
    (request,) = worker.answer_next()
    response = future.result(timeout=5)
    trace = outlet.next()
    assert names_of(trace) == [
        "GRPC_WAITREAD_START",
        "GRPC_WAITREAD_END",
        "REQUEST_START",
        "QUEUE_START",
        *EXECUTED,
        "INFER_RESPONSE_COMPLETE",
        "REQUEST_END",
        "GRPC_SEND_START",
        "GRPC_SEND_END",
    ]
    times = [ns for _, ns in trace.timestamps]
    assert times == sorted(times)
    assert (trace.model, trace.request_id) == ("simple", "r7")
    assert pb.ModelInferRequest.FromString(trace.request) == request
    assert pb.ModelInferResponse.FromString(trace.response) == response


def test_each_request_of_a_stream_has_a_trace(router: RunningRouter) -> None:
    outlet = traced(router)
    worker = router.worker()
    requests = [add_sub_request(id=name) for name in ("a", "b")]
    answers = router.stream(iter(requests))
    done = 0
    while done < len(requests):
        done += len(worker.answer_next())
    assert len(list(answers)) == 2
    traces = [outlet.next(), outlet.next()]
    assert sorted(trace.request_id for trace in traces) == ["a", "b"]
    assert {trace.timestamps[0][0] for trace in traces} == {"GRPC_WAITREAD_START"}


def test_a_stream_of_a_traced_caller_is_followed(router: RunningRouter) -> None:
    outlet = traced(router, rate=0)
    worker = router.worker()
    for metadata in ((), (("traceparent", PARENT),)):
        answers = router.stream(iter([add_sub_request()]), *metadata)
        worker.answer_next()
        assert len(list(answers)) == 1
    assert outlet.next().traceparent == PARENT
    assert outlet.traces.empty()


def test_a_client_that_leaves_ends_its_trace(router: RunningRouter) -> None:
    outlet = traced(router)
    future = router.infer(add_sub_request(id="left"))
    worker = router.worker()
    worker.next_batch()
    future.cancel()
    trace = outlet.next()
    assert (trace.request_id, trace.error) == ("left", "the client has left")
    worker.answer(add_sub_request())


DECOUPLED = RouteTable.of([route(add_sub(decoupled=True), generation=5)])
END = worker_pb2.BatchResponse(
    timing=worker_pb2.BatchTiming(compute_infer_ns=5), reply=[worker_pb2.Reply()]
)


def last_response(worker: PuppetWorker) -> None:
    streamed = worker_pb2.StreamedReply(final=True)
    streamed.reply.response = pb.ModelInferResponse(id="last").SerializeToString()
    message = worker_pb2.BatchResponse(streamed=[streamed])
    worker.stream.send(message.SerializeToString())


def test_a_trace_with_its_last_response_waits_for_the_end_of_the_execution(
    router: RunningRouter,
) -> None:
    router.apply(DECOUPLED)
    outlet = traced(router)
    worker = router.worker(5)
    responses = router.stream(iter([add_sub_request()]))
    worker.next_batch()
    last_response(worker)
    assert next(responses).infer_response.id == "last"
    router.on_loop(lambda: None)
    assert outlet.traces.empty()
    worker.answers.put(END)
    trace = outlet.next()
    assert set(EXECUTED) <= set(names_of(trace))
    times = [ns for _, ns in trace.timestamps]
    assert times == sorted(times)


def test_a_trace_does_not_wait_for_a_worker_that_is_lost(router: RunningRouter) -> None:
    router.apply(DECOUPLED)
    outlet = traced(router)
    worker = router.worker(5)
    responses = router.stream(iter([add_sub_request()]))
    worker.next_batch()
    last_response(worker)
    assert next(responses).infer_response.id == "last"
    worker.die()
    assert not set(EXECUTED) & set(names_of(outlet.next()))


def test_a_client_that_leaves_a_decoupled_model_ends_its_trace(
    router: RunningRouter,
) -> None:
    router.apply(DECOUPLED)
    outlet = traced(router)
    worker = router.worker(5)
    responses = router.stream(iter([add_sub_request(id="left")]))
    worker.next_batch()
    responses.cancel()
    trace = outlet.next()
    assert (trace.request_id, trace.error) == ("left", "the client has left")
    worker.answers.put(END)


def test_the_steps_of_an_ensemble_are_traced_with_their_tensors(
    router: RunningRouter,
) -> None:
    chain = ensemble(
        step("first", {"INPUT0": "A", "INPUT1": "A"}, {"OUTPUT0": "M"}),
        step("second", {"INPUT0": "M", "INPUT1": "A"}, {"OUTPUT0": "Z"}),
    )
    configs = (add_sub("first"), add_sub("second"), chain)
    routes = [route(each, generation=10 + i) for i, each in enumerate(configs)]
    router.apply(RouteTable.of(routes))
    outlet = traced(router)
    workers = router.worker(10), router.worker(11)
    head = pb.ModelInferRequest.InferInputTensor(
        name="A", datatype="INT32", shape=[1, 16]
    )
    future = router.infer(
        pb.ModelInferRequest(
            model_name="ens", inputs=[head], raw_input_contents=[raw(5)]
        )
    )
    for worker in workers:
        add(worker)
    assert value_of(future.result(timeout=5).raw_output_contents[0]) == 17
    trace = outlet.next()
    assert not set(names_of(trace)) & set(EXECUTED)
    first, second = trace.steps.values()
    assert (first.model, second.model) == ("first", "second")
    for each in (first, second):
        assert names_of(each) == [
            "REQUEST_START",
            "QUEUE_START",
            *EXECUTED,
            "INFER_RESPONSE_COMPLETE",
            "REQUEST_END",
        ]
    sent = pb.ModelInferRequest.FromString(second.request)
    got = pb.ModelInferResponse.FromString(first.response)
    assert value_of(sent.raw_input_contents[0]) == 11
    assert value_of(got.raw_output_contents[0]) == 11


def test_tracing_can_be_switched_off_under_way(router: RunningRouter) -> None:
    outlet = traced(router)
    worker = router.worker()
    future = router.infer(add_sub_request(id="before"))
    worker.next_batch()
    tracer = Tracer(Outlet(), arrival_of)
    router.on_loop(lambda: router.inference.trace_by(tracer))
    after = router.infer(add_sub_request(id="after"))
    worker.answer(add_sub_request(id="before"))
    worker.answer_next()
    assert (future.result(timeout=5).id, after.result(timeout=5).id) == (
        "before",
        "after",
    )
    assert outlet.next().request_id == "before"
    assert outlet.traces.empty()
