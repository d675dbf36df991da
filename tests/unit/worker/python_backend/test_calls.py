"""Python models that call other models; the routers are puppets."""

import json
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protos import inference_pb2
from services.core.trace_token import TraceToken
from services.worker.backend import BackendCall
from services.worker.peers import Cancel, Outcome, Peers
from services.worker.python_backend.host.python_model import PythonModel
from services.worker.request_details import NO_DETAILS
from tests.unit.worker.python_backend.python_models import (
    call,
    failure,
    loaded,
    source,
    values,
)

MODEL = """
import asyncio, json
import numpy as np
import triton_python_backend_utils as pb_utils

def ask(r, **more):
    return pb_utils.InferenceRequest(
        model_name="other", requested_output_names=["Y"],
        inputs=[r.inputs()[0].renamed("X")], **more)

def told(tensor):
    return pb_utils.InferenceResponse([tensor.renamed("OUT")])

class TritonPythonModel:
    {definition} execute(self, requests):
        r = requests[0]
        {body}
"""


class PuppetPeers(Peers):
    """Doubles what it is given, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, bytes]] = []
        self.outcome: Outcome | None = None
        self.routers: list[str] = []

    def call(
        self,
        method: str,
        request: bytes,
        timeout_s: float | None,  # noqa: ARG002 - Peers' signature
        done: Callable[[Outcome], None],
        *,
        router: str = "",
    ) -> Cancel:
        self.routers.append(router)
        self.asked.append((method, request))
        done(self.outcome if self.outcome is not None else doubled(request))
        return lambda: None

    def stream(
        self,
        request: bytes,
        timeout_s: float | None,  # noqa: ARG002 - Peers' signature
        answer: Callable[[Outcome], None],
        end: Callable[[], None],
        *,
        router: str = "",
    ) -> Cancel:
        self.routers.append(router)
        self.asked.append(("ModelStreamInfer", request))
        for _ in range(2):
            message = inference_pb2.ModelStreamInferResponse()
            message.infer_response.ParseFromString(doubled(request))
            answer(message.SerializeToString())
        answer((3, "enough"))
        end()
        return lambda: None

    def request(self) -> inference_pb2.ModelInferRequest:
        return inference_pb2.ModelInferRequest.FromString(self.asked[-1][1])


def doubled(request: bytes) -> bytes:
    asked = inference_pb2.ModelInferRequest.FromString(request)
    numbers = 2 * np.frombuffer(asked.raw_input_contents[0], np.int32)
    response = inference_pb2.ModelInferResponse(model_name=asked.model_name)
    response.outputs.add(name="Y", datatype="INT32", shape=numbers.shape)
    response.raw_output_contents.append(numbers.tobytes())
    return response.SerializeToString()


@contextmanager
def calling(
    folder: Path, peers: Peers, body: str, definition: str = "def"
) -> Iterator[PythonModel]:
    model = source(folder, MODEL.format(body=body, definition=definition))
    with loaded(replace(model, peers=peers)) as instance:
        assert isinstance(instance, PythonModel)
        yield instance


RETURN_IT = "return [told(ask(r).exec().output_tensors()[0])]"


def large() -> BackendCall:
    return call(*range(10_000))


@pytest.mark.parametrize("of", [call(1, 2), large()])
def test_a_model_calls_another(tmp_path: Path, of: BackendCall) -> None:
    with calling(tmp_path, PuppetPeers(), RETURN_IT) as model:
        (answer,) = model.execute_requests([of])
    given = np.frombuffer(of.inputs[0].data, np.int32)
    assert values(answer) == (2 * given).tolist()


def test_a_call_says_all_that_the_model_said(tmp_path: Path) -> None:
    body = (
        "ask(r, request_id='i', correlation_id=7, flags=1, model_version=3,"
        " parameters={'a': True, 'b': 'x'}).exec(); return [told(r.inputs()[0])]"
    )
    peers = PuppetPeers()
    with calling(tmp_path, peers, body) as model:
        model.execute_requests([call(1)])
    asked = peers.request()
    assert (asked.model_name, asked.model_version, asked.id) == ("other", "3", "i")
    assert [one.name for one in asked.outputs] == ["Y"]
    assert asked.parameters["sequence_id"].int64_param == 7
    assert asked.parameters["sequence_start"].bool_param
    assert not asked.parameters["sequence_end"].bool_param
    assert asked.parameters["a"].bool_param
    assert asked.parameters["b"].string_param == "x"


TRACE = TraceToken(key="k7", endpoint="unix:/a router", traceparent="00-a-b-01")
TRACED = """\
assert "nereid_trace" not in r.parameters()
context = r.trace().get_context()
ask(r, trace=r.trace(), parameters={"seen": context}).exec()
for one in ask(r, trace=r.trace()).exec(decoupled=True):
    pass
"""


def test_what_is_asked_with_a_trace_becomes_part_of_it(tmp_path: Path) -> None:
    peers = PuppetPeers()
    body = textwrap.indent(TRACED + RETURN_IT, "        ").lstrip()
    with calling(tmp_path, peers, body) as model:
        traced = replace(NO_DETAILS, trace=TRACE.text)
        model.execute_requests([call(1, details=traced)])
    asked = [
        inference_pb2.ModelInferRequest.FromString(each) for _, each in peers.asked
    ]
    told = [each.parameters["nereid_trace"].string_param for each in asked]
    assert told == [TRACE.text, TRACE.text, ""]
    assert peers.routers == ["unix:/a router", "unix:/a router", ""]
    context = json.loads(asked[0].parameters["seen"].string_param)
    assert context == {"traceparent": "00-a-b-01"}


def test_without_a_trace_nothing_is_said_of_one(tmp_path: Path) -> None:
    peers = PuppetPeers()
    body = "assert r.trace().get_context() == ''; ask(r, trace=r.trace()).exec(); "
    with calling(tmp_path, peers, body + RETURN_IT) as model:
        model.execute_requests([call(1)])
    assert "nereid_trace" not in peers.request().parameters
    assert peers.routers == ["", ""]


def test_several_calls_are_under_way_at_once(tmp_path: Path) -> None:
    body = (
        "found = await asyncio.gather(*[ask(r).async_exec() for _ in range(3)]);"
        " return [told(found[2].output_tensors()[0])]"
    )
    peers = PuppetPeers()
    with calling(tmp_path, peers, body, "async def") as model:
        assert values(model.execute_requests([call(4)])[0]) == [8]
    assert len(peers.asked) == 3


def test_the_answers_of_a_decoupled_model_are_iterated(tmp_path: Path) -> None:
    body = (
        "got = list(ask(r).exec(decoupled=True));"
        " assert got[2].error().message() == 'enough';"
        " return [told(got[1].output_tensors()[0])]"
    )
    with calling(tmp_path, PuppetPeers(), body) as model:
        assert values(model.execute_requests([call(4)])[0]) == [8]


def test_a_refused_call_is_a_response_with_an_error(tmp_path: Path) -> None:
    peers = PuppetPeers()
    peers.outcome = (5, "no such model")
    body = "return [pb_utils.InferenceResponse(error=ask(r).exec().error())]"
    with calling(tmp_path, peers, body) as model:
        assert failure(model.execute_requests([call(4)])[0]) == (5, "no such model")


def test_without_a_router_a_call_fails_at_once(tmp_path: Path) -> None:
    body = "return [pb_utils.InferenceResponse(error=ask(r).exec().error())]"
    with calling(tmp_path, Peers(), body) as model:
        (answer,) = model.execute_requests([call(4)])
    assert failure(answer) == (14, "no router is connected")


def test_models_are_loaded_and_asked_whether_they_are_ready(tmp_path: Path) -> None:
    peers = PuppetPeers()
    peers.outcome = inference_pb2.ModelReadyResponse(ready=True).SerializeToString()
    body = (
        "pb_utils.load_model('x', {'config': '{}', 'file:1/a': b'\\xff'});"
        " pb_utils.unload_model('x'); assert pb_utils.is_model_ready('x', '2');"
        " return [told(r.inputs()[0])]"
    )
    with calling(tmp_path, peers, body) as model:
        assert values(model.execute_requests([call(4)])[0]) == [4]
    assert [method for method, _ in peers.asked] == [
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "ModelReady",
    ]
    load = inference_pb2.RepositoryModelLoadRequest.FromString(peers.asked[0][1])
    assert load.parameters["config"].string_param == "{}"
    assert load.parameters["file:1/a"].bytes_param == b"\xff"


def test_a_model_that_cannot_be_loaded_raises(tmp_path: Path) -> None:
    peers = PuppetPeers()
    peers.outcome = (3, "load failed")
    with calling(tmp_path, peers, "pb_utils.load_model('x')") as model:
        (answer,) = model.execute_requests([call(4)])
    assert "TritonModelException: load failed" in failure(answer)[1]
