"""Models that hang while their process lives: found, replaced, and the guilty told."""

import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests.chaos.load import load, wait_until
from tests.support.stack import Stack, build_demo, running_stack

pytestmark = pytest.mark.timeout(180)

BOUND_S = 1
LOST, RETRIES, QUARANTINED = COUNTERS = (
    "nereid_lost_executions_total",
    "nereid_request_retries_total",
    "nereid_request_quarantined_total",
)
CONFIG = f"""
backend: "%s"
max_batch_size: 4
input [ {{ name: "X" data_type: TYPE_INT64 dims: [ 1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_INT64 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
dynamic_batching {{
  preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 1500000
}}
parameters {{
  key: "nereid_execution_timeout_secs" value {{ string_value: "{BOUND_S}" }}
}}
"""
# How often it counts to X before it answers: this takes years.
ENDLESS = 1 << 62
PYTHON_MODEL = f"""
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            while (x == {ENDLESS}).any():
                time.sleep(1)
            tensors = [pb_utils.Tensor("Y", x)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""


def counting_model() -> bytes:
    """Return an ONNX model that counts to the largest X before it answers X."""
    info = helper.make_tensor_value_info
    kind = TensorProto.INT64
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["goes_on"]),
            helper.make_node("Add", ["count", "one"], ["counted"]),
        ],
        "body",
        [
            info("number", kind, []),
            info("go_on", TensorProto.BOOL, []),
            info("count", kind, [1]),
        ],
        [info("goes_on", TensorProto.BOOL, []), info("counted", kind, [1])],
        [helper.make_tensor("one", kind, [1], [1])],
    )
    nodes = [
        helper.make_node("ReduceMax", ["X"], ["times"], keepdims=0),
        helper.make_node("Loop", ["times", "", "zero"], ["end"], body=body),
        helper.make_node("Sub", ["end", "end"], ["nought"]),
        helper.make_node("Add", ["X", "nought"], ["Y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "counting",
        [info("X", kind, ["rows", 1])],
        [info("Y", kind, ["rows", 1])],
        [helper.make_tensor("zero", kind, [1], [0])],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    content: bytes = model.SerializeToString()
    return content


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("demo") / "models"
    build_demo(repository, "--only", "simple")
    for name, file, content, backend in (
        ("python", "model.py", PYTHON_MODEL.encode(), "python"),
        ("onnx", "model.onnx", counting_model(), "onnxruntime"),
    ):
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / file).write_bytes(content)
        (repository / name / "config.pbtxt").write_text(CONFIG % backend)
    with running_stack(repository) as running:
        yield running


def ask(stack: Stack, model: str, number: int) -> str:
    """Return what is wrong with the answer to one request; "" if nothing."""
    tensor = triton.InferInput("X", [1, 1], "INT64")
    tensor.set_data_from_numpy(np.array([[number]], np.int64))
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        try:
            result = client.infer(model, [tensor], client_timeout=60)
        except InferenceServerException as error:
            return str(error)
    return "" if result.as_numpy("Y").tolist() == [[number]] else "wrong numbers"


def metric(stack: Stack, name: str, model: str) -> float:
    url = f"http://127.0.0.1:{stack.metrics}/metrics"
    text = urllib.request.urlopen(url).read().decode()
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith(name) and f'model="{model}"' in line
    )


def is_sound(stack: Stack, model: str) -> bool:
    return ask(stack, model, 3) == ""


@pytest.mark.parametrize("model", ["python", "onnx"])
def test_the_one_who_hangs_is_told_and_all_others_are_answered(
    stack: Stack, model: str
) -> None:
    assert is_sound(stack, model)
    before = stack.process_of("worker")
    counted = {name: metric(stack, name, model) for name in COUNTERS}
    with load(stack.grpc) as others, ThreadPoolExecutor(4) as clients:
        numbers = [1, ENDLESS, 2, 3]
        answers = list(clients.map(lambda n: ask(stack, model, n), numbers))
        others.wait_for_more(100, within_s=30)
    assert others.errors == [], stack.output
    told = answers.pop(1)
    assert answers == ["", "", ""], stack.output
    assert told.startswith("[StatusCode.INTERNAL]"), told
    assert "has brought down workers" in told
    began = time.monotonic()
    assert ask(stack, model, ENDLESS).startswith("[StatusCode.INTERNAL]")
    assert time.monotonic() - began < BOUND_S
    wait_until(lambda: is_sound(stack, model), within_s=30)
    # Only a model that has no process of its own takes the worker along.
    assert (stack.process_of("worker") == before) == (model == "python")
    took = {name: metric(stack, name, model) - counted[name] for name in COUNTERS}
    # The batch of four, two of them, and then it alone.
    assert (took[LOST], took[RETRIES], took[QUARANTINED]) == (3, 6, 1)
    assert "an execution does not return" in stack.output
