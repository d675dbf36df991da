"""A request's own times: in the response's parameters, and as Server-Timing."""

import pytest

from protos import inference_pb2 as pb
from protos import worker_pb2
from services.core.errors import InvalidRequestError
from services.router.admission import Admission
from services.router.request_timing import server_timing, timing_suffix
from services.router.rest_plan import ReplyPlan
from services.router.rest_response import encode_infer
from services.router.route_table import RouteTable
from tests.unit.router.routes import add_sub, add_sub_request, route
from tests.unit.router.stage import MS, response, staged


def suffix(worker: str = "cuda:0") -> bytes:
    return timing_suffix(
        queue_ns=1_500_000,
        batch_size=8,
        timing=(1000, 2_000_000, 3000),
        retries=1,
        worker=worker,
        version="3",
    )


def wish(value: pb.InferParameter) -> bytes:
    request = add_sub_request()
    request.parameters["nereid_timing"].CopyFrom(value)
    return request.SerializeToString()


def test_the_times_are_appended_to_a_finished_response() -> None:
    before = pb.ModelInferResponse(
        model_name="m", parameters={"p": pb.InferParameter(bool_param=True)}
    )
    after = pb.ModelInferResponse.FromString(before.SerializeToString() + suffix())
    assert after.model_name == "m"
    assert after.parameters["p"].bool_param
    assert after.parameters["nereid_queue_ns"].int64_param == 1_500_000
    assert after.parameters["nereid_compute_infer_ns"].int64_param == 2_000_000
    assert after.parameters["nereid_worker"].string_param == "cuda:0"


def test_server_timing_tells_the_same_in_milliseconds() -> None:
    parameters = pb.ModelInferResponse.FromString(suffix()).parameters
    assert server_timing(parameters) == (
        "queue;dur=1.5, input;dur=0.001, infer;dur=2, output;dur=0.003, "
        'batch;desc="8", retries;desc="1", worker;desc="cuda:0", version;desc="3"'
    )
    assert server_timing({}) == ""


def test_a_workers_name_cannot_break_the_header() -> None:
    parameters = pb.ModelInferResponse.FromString(suffix('w"\n\\ü')).parameters
    assert 'worker;desc="w"' in server_timing(parameters)


def test_a_rest_answer_has_the_header_only_if_there_are_times() -> None:
    plain = pb.ModelInferResponse(model_name="m").SerializeToString()
    assert encode_infer(plain, ReplyPlan()).headers == ()
    headers = dict(encode_infer(plain + suffix(), ReplyPlan()).headers)
    assert headers["server-timing"].startswith("queue;dur=1.5,")


def test_the_wish_is_learned_with_the_header() -> None:
    admission = Admission(RouteTable.of([route(add_sub())]))
    body = wish(pb.InferParameter(bool_param=True))
    for _ in range(2):
        assert admission.admit(body)[0].wants_timing
    assert not admission.admit(add_sub_request().SerializeToString())[0].wants_timing
    refused = wish(pb.InferParameter(bool_param=False))
    assert not admission.admit(refused)[0].wants_timing


def test_a_wish_of_another_type_is_refused() -> None:
    admission = Admission(RouteTable.of([route(add_sub())]))
    with pytest.raises(InvalidRequestError, match="nereid_timing"):
        admission.admit(wish(pb.InferParameter(string_param="true")))


def test_only_who_asked_gets_the_times_of_the_whole_batch() -> None:
    stage = staged(add_sub())
    asked, other = stage.enqueue("asked", "other", rows=2)
    stage.scheduler.time(asked)
    stage.clock_ns = 4 * MS
    instance = stage.instance()
    stage.clock_ns = 9 * MS
    stage.complete(instance, response(b""), response(b""), ms=3)
    (message,) = asked.outcome
    assert isinstance(message, bytes)
    parameters = pb.ModelInferResponse.FromString(message).parameters
    assert parameters["nereid_queue_ns"].int64_param == 4 * MS
    assert parameters["nereid_batch_size"].int64_param == 4
    assert parameters["nereid_compute_infer_ns"].int64_param == 3 * MS
    assert parameters["nereid_worker"].string_param == "w"
    assert parameters["nereid_version"].string_param == "1"
    assert other.outcome == [b""]


def test_a_request_that_failed_gets_no_times_and_leaves_nothing_behind() -> None:
    stage = staged(add_sub())
    (asked,) = stage.enqueue("asked")
    stage.scheduler.time(asked)
    failed = worker_pb2.Reply(error=worker_pb2.ReplyError(code=3, message="no"))
    stage.complete(stage.instance(), failed)
    assert asked.outcome == [(3, "no")]
    assert not stage.scheduler._timed
