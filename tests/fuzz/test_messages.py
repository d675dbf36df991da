"""Malformed requests within one process: refused with a reason, never more.

From the codec of the REST door through admission to the worker's buffers. What
admission lets through, the worker must be able to execute.
"""

from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos import inference_pb2, worker_pb2
from services.core.errors import ServingError
from services.router import rest_request, rest_response
from services.router.admission import Admission, admit_in_full
from services.router.rest_generate import parse_generate
from services.router.rest_plan import ModelView
from services.router.route_table import RouteTable
from services.worker.backend import Tensors
from services.worker.execution import Execution
from services.worker.signature import Signature
from tests.fuzz.damage import (
    FIRST,
    SECOND,
    damaged_bytes,
    damaged_json,
    examples,
    rest_requests,
)
from tests.unit.router.routes import Request, add_sub, add_sub_request, route
from tests.unit.worker.puppets import ManualClock, PuppetBackend

pytestmark = pytest.mark.timeout(900)

CONFIG = add_sub()
TABLE = RouteTable.of([route(CONFIG)])
VIEW = ModelView(name="simple", version="", config=CONFIG)
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def add_and_subtract(inputs: Tensors) -> Tensors:
    first, second = inputs["INPUT0"], inputs["INPUT1"]
    return {"OUTPUT0": first + second, "OUTPUT1": first - second}


EXECUTION = Execution(
    Signature.from_config(CONFIG, 1), PuppetBackend(add_and_subtract), ManualClock()
)


def execute(*bodies: bytes) -> list[worker_pb2.Reply]:
    message = worker_pb2.BatchRequest(request=bodies).SerializeToString()
    return list(worker_pb2.BatchResponse.FromString(EXECUTION.run(message)).reply)


def assert_executed(body: bytes) -> bytes:
    """Have the worker answer what admission let through."""
    (reply,) = execute(body)
    assert reply.WhichOneof("outcome") == "response", reply.error.message
    return reply.response


@settings(max_examples=examples(0.3), deadline=None, suppress_health_check=QUIET)
@given(rest_requests())
def test_a_malformed_body_is_refused_or_answered(
    request: tuple[bytes, Mapping[str, str]],
) -> None:
    body, headers = request
    try:
        parsed = rest_request.parse_infer(body, headers, VIEW, max_input_bytes=1 << 16)
        _, admitted = admit_in_full(parsed.request, TABLE)
    except ServingError:
        return
    response = assert_executed(admitted)
    rest_response.encode_infer(response, parsed.reply)


@settings(max_examples=examples(0.1), deadline=None, suppress_health_check=QUIET)
@given(damaged_json())
def test_a_malformed_generate_is_refused_or_admitted(body: bytes) -> None:
    try:
        parsed = parse_generate(body, VIEW, max_input_bytes=1 << 16)
        _, admitted = admit_in_full(parsed.request, TABLE)
    except ServingError:
        return
    assert_executed(admitted)


def _grpc_seeds() -> list[bytes]:
    classified = add_sub_request(id="c")
    for name in ("OUTPUT1", "OUTPUT0"):
        classified.outputs.add(name=name)
    classified.outputs[0].parameters["classification"].int64_param = 3
    classified.parameters["custom"].double_param = 0.5
    typed = Request(model_name="simple", model_version="1", id="t")
    for index, values in enumerate((FIRST, SECOND)):
        tensor = typed.inputs.add(name=f"INPUT{index}", datatype="INT32", shape=[1, 16])
        tensor.contents.int_contents.extend(values.tolist())
    seeds = (add_sub_request(), add_sub_request(rows=3, id="a"), classified, typed)
    return [request.SerializeToString() for request in seeds]


GRPC_SEEDS = _grpc_seeds()
ADMISSION = Admission(TABLE)


def verdict_of(admission: Admission | None, body: bytes) -> object:
    """Return what admission says; without one, what the full path says."""
    try:
        verdict, normal = (
            admission.admit(body) if admission else admit_in_full(body, TABLE)
        )
    except ServingError as error:
        return type(error), str(error)
    return verdict.rows, verdict.shape_key, verdict.priority, normal


@settings(max_examples=examples(0.4), deadline=None, suppress_health_check=QUIET)
@given(st.sampled_from(GRPC_SEEDS).flatmap(damaged_bytes))
def test_the_shortcut_says_what_the_full_path_says_and_the_worker_agrees(
    body: bytes,
) -> None:
    expected = verdict_of(None, body)
    for _ in range(2):
        assert verdict_of(ADMISSION, body) == expected
    if isinstance(expected, tuple) and len(expected) > 2:
        alone = assert_executed(expected[-1])
        ids = inference_pb2.ModelInferResponse.FromString(alone).id
        assert ids == Request.FromString(body).id
    for seed in GRPC_SEEDS[:2]:
        assert verdict_of(ADMISSION, seed) == verdict_of(None, seed)


@st.composite
def varied_requests(draw: st.DrawFn) -> bytes:
    """Return a request with right and wrong parts, in every form that there is."""
    rows = draw(st.integers(0, 9))
    request = Request(
        model_name=draw(st.sampled_from(["simple", "simple", "simple", "nope"])),
        model_version=draw(st.sampled_from(["", "1", "2", "x"])),
        id=draw(st.sampled_from(["", "a", "é", "x" * 127, "x" * 128])),
    )
    names = draw(st.sampled_from([(0, 1), (0, 1), (1, 0), (0,), (0, 0), (0, 1, 2)]))
    is_typed = draw(st.integers(0, 4)) == 0
    for name in names:
        shape = draw(st.sampled_from([(rows, 16), (rows, 16), (16,), (rows, -16), ()]))
        datatype = draw(st.sampled_from(["INT32", "INT32", "INT32", "FP32", "X"]))
        tensor = request.inputs.add(name=f"INPUT{name}", datatype=datatype, shape=shape)
        if is_typed:
            tensor.contents.int_contents.extend([name] * 16 * rows)
        else:
            size = 64 * rows + draw(st.sampled_from([0, 0, 0, 4]))
            request.raw_input_contents.append(bytes([name]) * size)
    for name in draw(st.lists(st.sampled_from([0, 1, 1, 2]), max_size=3)):
        output = request.outputs.add(name=f"OUTPUT{name}")
        if draw(st.booleans()):
            classes = draw(st.sampled_from([0, 1, 3, 99, -1]))
            output.parameters["classification"].int64_param = classes
    for key in draw(st.lists(st.sampled_from(["custom", "priority", "triton_x"]))):
        request.parameters[key].int64_param = draw(st.integers(0, 3))
    return request.SerializeToString()


@settings(max_examples=examples(0.1), deadline=None, suppress_health_check=QUIET)
@given(st.lists(varied_requests(), max_size=6))
def test_valid_and_invalid_requests_do_not_mix_up(bodies: list[bytes]) -> None:
    """One after the other through the shortcut; the worker answers the valid ones."""
    admission = Admission(TABLE)
    admitted = []
    for body in bodies * 2:
        expected = verdict_of(None, body)
        assert verdict_of(admission, body) == expected
        if isinstance(expected, tuple) and len(expected) > 2:
            admitted.append((body, expected[-1]))
    replies = [assert_executed(normal) for _, normal in admitted]
    assert replies == [reply.response for reply in execute(*(n for _, n in admitted))]
