"""The shell of ensembles with decoupled steps, with puppets on both sides."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from protos import inference_pb2 as pb
from services.core.model_config import ModelConfig
from services.router.ensemble_calls import Member, ProducerCall, StepCall
from services.router.ensemble_plan import plan_of
from services.router.ensemble_strands import layers_of
from services.router.ensemble_streams import StreamedRun
from services.router.ensemble_wire import read_request
from services.router.pending_request import PendingRequest
from services.router.route_table import Route
from tests.unit.router.ensembles import ensemble, step
from tests.unit.router.routes import add_sub_request, route

COUNT, EACH = 0, 1
COUNTED = ensemble(
    step("count", {"I": "A"}, {"O": "C"}), step("each", {"I": "C"}, {"O": "Z"})
)


@dataclass(eq=False)
class Client:
    """A door that takes many responses."""

    body: bytes = b""
    rows: int = 1
    shape_key: object = None
    enqueued_ns: int = 0
    priority: int = 0
    timeout_ns: int = 0
    attempts: int = 0
    open: bool = True
    withdraw: Any = None
    pace: Any = None
    responses: list[bytes] = field(default_factory=list)
    is_final: bool = False
    error: str = ""

    def answer(self, message: bytes) -> None:
        raise AssertionError(message)

    def respond(self, message: bytes | None, *, final: bool) -> None:
        if message is not None:
            response = pb.ModelInferResponse.FromString(message)
            self.responses.append(response.raw_output_contents[0])
        self.is_final |= final

    def respond_with_error(self, code: int, details: str) -> None:
        raise AssertionError((code, details))

    def fail(self, code: int, details: str) -> None:
        del code
        self.open = False
        self.error = details


class Models:
    """Holds what is submitted; owner of the run and taker of its steps."""

    def __init__(self, config: ModelConfig, refuses: int | None) -> None:
        self.refuses = refuses
        self.route: Route = route(config)
        self.calls: list[StepCall] = []
        self.forgotten: list[PendingRequest] = []
        self.ended = 0

    def submit(self, call: StepCall, body: bytes) -> None:
        call.body = body
        self.calls.append(call)
        if call.step == self.refuses:
            call.fail(3, "refused")

    def streamed(self, run: StreamedRun) -> None:
        del run
        self.ended += 1

    def failed(self, run: StreamedRun, code: int, details: str) -> None:
        run.request.fail(code, details)
        self.ended += 1

    def forget(self, request: PendingRequest) -> None:
        self.forgotten.append(request)

    def enqueue(self, request: PendingRequest) -> None:
        raise AssertionError(request)

    def time(self, request: PendingRequest) -> None:
        raise AssertionError(request)

    def of(self, step: int) -> list[StepCall]:
        """Return the calls of one step that wait for an answer."""
        return [call for call in self.calls if call.step == step and call.open]

    def producer(self) -> ProducerCall:
        (call,) = self.of(COUNT)
        assert isinstance(call, ProducerCall)
        return call


def begun(
    config: ModelConfig = COUNTED,
    *,
    decoupled: Collection[int] = (COUNT,),
    limit: int = 0,
    refuses: int | None = None,
) -> tuple[Client, Models]:
    models, client = Models(config, refuses), Client()
    member: Any = Member(models, models)  # type: ignore[arg-type]
    members: Mapping[int, Member] = dict.fromkeys(range(3), member)
    request = add_sub_request(model_name="ens")
    request.inputs[0].name = "A"
    run = StreamedRun(
        models,
        client,
        read_request(request.SerializeToString()),
        members,
        layers_of(plan_of(config), decoupled),
        limit=limit,
    )
    run.begin()
    return client, models


def response(text: bytes) -> bytes:
    return pb.ModelInferResponse(
        outputs=[pb.ModelInferResponse.InferOutputTensor(name="O", datatype="UINT8")],
        raw_output_contents=[text],
    ).SerializeToString()


def echo(call: StepCall) -> None:
    request = pb.ModelInferRequest.FromString(call.body)
    call.answer(response(request.raw_input_contents[0]))


def test_responses_leave_in_order_whichever_is_there_first() -> None:
    client, models = begun()
    for text in (b"a", b"b", b"c"):
        models.producer().respond(response(text), final=False)
    first, second, third = models.of(EACH)
    echo(third)
    assert client.responses == []
    echo(first)
    assert client.responses == [b"a"]
    models.producer().respond(None, final=True)
    assert not client.is_final
    echo(second)
    everything = [b"a", b"b", b"c"]
    assert (client.responses, client.is_final, models.ended) == (everything, True, 1)


def test_the_last_response_may_be_the_final_one() -> None:
    client, models = begun()
    models.producer().respond(response(b"a"), final=True)
    assert not client.is_final
    echo(models.of(EACH)[0])
    assert (client.responses, client.is_final) == ([b"a"], True)


def test_a_stream_without_responses_ends_the_request() -> None:
    client, models = begun()
    models.producer().respond(None, final=True)
    assert (client.responses, client.is_final, models.ended) == ([], True, 1)


def test_the_error_of_one_response_ends_all_and_the_model_is_told() -> None:
    client, models = begun()
    producer = models.producer()
    told: list[bool] = []
    producer.withdraw = lambda: told.append(True)
    producer.respond(response(b"a"), final=False)
    producer.respond(response(b"b"), final=False)
    first, second = models.of(EACH)
    first.fail(3, "no")
    assert client.error == "in ensemble 'ens', no"
    assert told == [True]
    assert models.forgotten == [second]
    producer.respond(response(b"c"), final=True)
    second.answer(response(b"b"))
    assert (client.responses, models.ended) == ([], 1)
    assert models.of(EACH) == []


@pytest.mark.parametrize("final", [False, True])
def test_an_error_of_the_stream_ends_the_request(*, final: bool) -> None:
    client, models = begun()
    producer = models.producer()
    if final:
        producer.fail(3, "no")
    else:
        producer.respond_with_error(3, "no")
    assert client.error == "in ensemble 'ens', no"
    assert models.forgotten == ([] if final else [producer])


def test_a_model_that_has_not_begun_is_taken_out_of_the_queue() -> None:
    _, models = begun()
    producer = models.producer()
    producer.leave()
    assert models.forgotten == [producer]


def test_an_output_that_a_model_does_not_return_is_named() -> None:
    client, models = begun()
    models.producer().respond(pb.ModelInferResponse().SerializeToString(), final=False)
    assert client.error == "in ensemble 'ens', model 'count' returned no output 'O'"


def test_what_cannot_be_read_ends_the_request() -> None:
    client, models = begun()
    models.producer().respond(b"\xff", final=False)
    assert client.error == "a step's answer could not be read"


@pytest.mark.parametrize(("limit", "at_once"), [(0, 5), (2, 2), (9, 5)])
def test_no_step_is_under_way_more_often_than_allowed(limit: int, at_once: int) -> None:
    client, models = begun(limit=limit)
    sent = [b"%d" % i for i in range(5)]
    for text in sent:
        models.producer().respond(response(text), final=False)
    models.producer().respond(None, final=True)
    assert len(models.of(EACH)) == at_once
    while waiting := models.of(EACH):
        assert len(waiting) <= at_once
        echo(waiting[0])
    assert client.responses == sent
    assert client.is_final


SLOW = True


def told_by(producer: ProducerCall) -> list[bool]:
    """Have a model work on a step; return where it notes how it is paced."""
    told: list[bool] = []
    producer.pace = told.append
    return told


def test_a_model_is_paused_while_the_client_of_the_ensemble_is_slow() -> None:
    client, models = begun()
    told = told_by(models.producer())
    client.pace(SLOW)
    client.pace(SLOW)
    models.producer().respond(response(b"a"), final=False)
    client.pace(not SLOW)
    assert told == [True, False]
    models.producer().respond(None, final=True)
    echo(models.of(EACH)[0])
    assert (client.is_final, client.pace) == (True, None)


def test_a_model_that_begins_late_is_paused_with_its_first_response() -> None:
    client, models = begun()
    client.pace(SLOW)
    told = told_by(models.producer())
    for text in (b"a", b"b"):
        models.producer().respond(response(text), final=False)
    assert told == [True]


def test_a_model_is_paused_while_the_steps_behind_it_may_not_be_under_way() -> None:
    client, models = begun(limit=1)
    told = told_by(models.producer())
    models.producer().respond(response(b"a"), final=False)
    assert told == []
    models.producer().respond(response(b"b"), final=False)
    models.producer().respond(response(b"c"), final=False)
    assert told == [True]
    echo(models.of(EACH)[0])
    assert told == [True]
    echo(models.of(EACH)[0])
    assert told == [True, False]
    echo(models.of(EACH)[0])
    assert client.responses == [b"a", b"b", b"c"]


def test_a_step_that_is_idle_again_may_run_again() -> None:
    client, models = begun(limit=1)
    for text in (b"a", b"b"):
        models.producer().respond(response(text), final=False)
        echo(models.of(EACH)[0])
    assert client.responses == [b"a", b"b"]


def test_streams_within_the_stream_are_counted_too() -> None:
    twice = ensemble(
        step("count", {"I": "A"}, {"O": "C"}), step("again", {"I": "C"}, {"O": "Z"})
    )
    client, models = begun(twice, decoupled={0, 1}, limit=1)
    models.producer().respond(response(b"a"), final=False)
    models.producer().respond(response(b"b"), final=True)
    for text in (b"a", b"b"):
        (inner,) = models.of(EACH)
        assert isinstance(inner, ProducerCall)
        inner.respond(response(text + b"0"), final=False)
        inner.respond(response(text + b"1"), final=True)
    assert client.responses == [b"a0", b"a1", b"b0", b"b1"]
    assert client.is_final


def test_nothing_is_submitted_once_the_request_is_over() -> None:
    client, models = begun(limit=1)
    for text in (b"a", b"b"):
        models.producer().respond(response(text), final=False)
    empty = pb.ModelInferResponse().SerializeToString()
    models.of(EACH)[0].answer(empty)
    assert "returned no output 'O'" in client.error
    assert models.of(EACH) == []


def test_a_step_that_is_refused_at_once_ends_the_request_once() -> None:
    both = ensemble(
        step("count", {"I": "A"}, {"O": "C"}),
        step("plain", {"I": "A"}, {"O": "P"}),
        step("join", {"I": "C", "J": "P"}, {"O": "Z"}),
    )
    client, models = begun(both, refuses=COUNT)
    assert client.error == "in ensemble 'ens', refused"
    assert (len(models.calls), models.ended) == (1, 1)


def test_a_stream_that_is_over_says_nothing_more() -> None:
    client, models = begun()
    producer = models.producer()
    producer.respond(response(b"a"), final=True)
    producer.respond(response(b"b"), final=False)
    assert len(models.of(EACH)) == 1
    assert client.error == ""
