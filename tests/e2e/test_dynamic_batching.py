"""The dynamic batcher behind the whole stack, held by Triton's own test hook.

Each model waits until HOLD requests are queued before its first execution.
"""

import http.client
import itertools
import json
import queue
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import tritonclient.grpc as triton
from onnx import TensorProto, helper

from tests.support.eventually import eventually
from tests.support.stack import Stack, started_stack

pytestmark = pytest.mark.timeout(120)

HOLD = 4
TIMEOUT_S = 1.0
QUEUE_SIZE = 2
PYTHON_MODEL = """
import itertools
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self._numbers = itertools.count()

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            said = json.loads(request.parameters()).get("word", "none")
            about = [len(requests), next(self._numbers)]
            tensors = {
                "Y": x * 2,
                "WORD": np.array([[said.encode()]], object),
                "ABOUT": np.array([about], np.int32),
            }
            wanted = request.requested_output_names()
            responses.append(pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, tensors[name]) for name in wanted]
            ))
        return responses
"""
TENSORS = """
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] },
         { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] },
         { name: "ABOUT" data_type: TYPE_INT32 dims: [ 2 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
DOORS = ("grpc", "envoy", "rest")
MODELS = {
    **{
        f"left_{how}": "max_batch_size: 8 dynamic_batching { }"
        for how in (*DOORS, "late")
    },
    "held": "max_batch_size: 8 dynamic_batching { }",
    "ranked": """
max_batch_size: 1
dynamic_batching { priority_levels: 2 default_priority_level: 2 }
""",
    "timed": f"""
max_batch_size: 8
dynamic_batching {{ default_queue_policy {{
  timeout_action: REJECT default_timeout_microseconds: {int(TIMEOUT_S * 1e6)}
  allow_timeout_override: true
}} }}
""",
    "narrow": f"""
max_batch_size: 8
dynamic_batching {{ default_queue_policy {{ max_queue_size: {QUEUE_SIZE} }} }}
""",
}


def doubling_rows() -> bytes:
    """Return an ONNX model whose output has twice the rows of its input."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Concat", ["X", "X"], ["Y"], axis=0)],
        "rows",
        [info("X", TensorProto.INT32, ["rows", 1])],
        [info("Y", TensorProto.INT32, ["more", 1])],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    content: bytes = model.SerializeToString()
    return content


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("models")
    for name, config in MODELS.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(PYTHON_MODEL)
        text = f'backend: "python" {config} {TENSORS}'
        (repository / name / "config.pbtxt").write_text(text)
    write_wrong_rows(repository)
    hook = {"TRITONSERVER_DELAY_SCHEDULER": str(HOLD)}
    with started_stack(repository, environment=hook) as running:
        running.wait_ready()
        yield running


def write_wrong_rows(repository: Path) -> None:
    version = repository / "rows" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(doubling_rows())
    (repository / "rows" / "config.pbtxt").write_text(
        'backend: "onnxruntime" max_batch_size: 8 dynamic_batching { }'
        ' input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]'
        ' output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]'
    )


class Caller:
    """Sends requests to one model without waiting, and collects what comes back."""

    def __init__(self, stack: Stack, model: str) -> None:
        self._stack = stack
        self._model = model
        self._client = triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}")
        self._answers: queue.SimpleQueue[tuple[int, Any, Any, float]] = (
            queue.SimpleQueue()
        )
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def send(self, **options: Any) -> int:  # noqa: ANN401 - tritonclient is untyped
        """Send a request whose X is its number; return that once it waits."""
        number = next(self._numbers)
        began = time.monotonic()
        tensor = triton.InferInput("X", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[number]], np.int32))

        def answered(result: Any, error: Any) -> None:  # noqa: ANN401
            self._answers.put((number, result, error, time.monotonic() - began))

        self._client.async_infer(self._model, [tensor], answered, **options)
        return number

    def answers(self, count: int) -> dict[int, tuple[Any, Any, float]]:
        """Return what the next ``count`` were told, by number, and after how long."""
        found = {}
        for _ in range(count):
            number, *rest = self._answers.get(timeout=30)
            found[number] = tuple(rest)
        return found

    @property
    def is_silent(self) -> bool:
        """Whether nothing has come that was not taken."""
        return self._answers.empty()

    def until_waiting(self, count: int) -> None:
        """Return once so many requests wait in the model's queue."""
        name = f'nv_inference_pending_request_count{{model="{self._model}"'
        eventually(lambda: shown(self._stack, name) == count)

    @property
    def executions(self) -> int:
        (found,) = self._client.get_inference_statistics(self._model).model_stats
        return int(found.execution_count)


def shown(stack: Stack, name: str, label: str = "") -> int:
    """Return the sum of the metrics whose name and labels begin so and have that."""
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.metrics}/metrics") as page:
        lines = page.read().decode().splitlines()
    found = [
        line.rpartition(" ")[2]
        for line in lines
        if line.startswith(name) and label in line
    ]
    return sum(int(float(value)) for value in found)


def enter(stack: Stack, door: str, model: str) -> Callable[[], object]:
    """Send a request by a door without waiting; return what makes its client leave."""
    if door == "rest":
        connection = http.client.HTTPConnection("127.0.0.1", stack.http, timeout=30)
        tensor = {"name": "X", "datatype": "INT32", "shape": [1, 1], "data": [7]}
        body = json.dumps({"inputs": [tensor]})
        connection.request("POST", f"/v2/models/{model}/infer", body)
        return connection.close
    port = stack.grpc if door == "grpc" else stack.http
    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    seven = triton.InferInput("X", [1, 1], "INT32")
    seven.set_data_from_numpy(np.array([[7]], np.int32))
    call = client.async_infer(model, [seven], lambda **_: None)
    leave: Callable[[], object] = call.cancel
    return leave


def test_held_requests_share_a_batch_and_each_gets_exactly_its_own(
    stack: Stack,
) -> None:
    outputs = ["Y", "WORD", "ABOUT"]
    with Caller(stack, "held") as caller:
        for number in range(HOLD - 1):
            names = ["ABOUT", outputs[number % 2]]
            caller.send(
                request_id=f"id-{number}",
                outputs=[triton.InferRequestedOutput(name) for name in names],
                parameters={"word": f"word-{number}"},
            )
        caller.until_waiting(HOLD - 1)
        assert caller.is_silent
        caller.send(request_id="last")
        found = caller.answers(HOLD)
        assert caller.executions == 1
    for number, (result, error, _) in found.items():
        assert error is None, str(error)
        response = result.get_response()
        assert response.id == ("last" if number == HOLD - 1 else f"id-{number}")
        assert result.as_numpy("ABOUT")[0, 0] == HOLD
        if number == HOLD - 1:
            assert [one.name for one in response.outputs] == outputs
        elif number % 2:
            assert result.as_numpy("WORD").tolist() == [[f"word-{number}".encode()]]
            assert result.as_numpy("Y") is None
        else:
            assert result.as_numpy("Y").tolist() == [[2 * number]]
            assert result.as_numpy("WORD") is None


def test_a_higher_priority_is_executed_first(stack: Stack) -> None:
    with Caller(stack, "ranked") as caller:
        for _ in range(HOLD - 2):
            caller.send()
        unknown = caller.send(priority=9)  # out of range: the default level
        caller.until_waiting(HOLD - 1)
        urgent = caller.send(priority=1)
        found = caller.answers(HOLD)
    turns = {
        number: int(result.as_numpy("ABOUT")[0, 1])
        for number, (result, _, _) in found.items()
    }
    assert turns[urgent] == 0
    assert turns[unknown] > 0


def test_a_timeout_is_told_when_it_ends_and_may_only_be_shortened(
    stack: Stack,
) -> None:
    short_s = TIMEOUT_S / 4
    with Caller(stack, "timed") as caller:
        usual = caller.send()
        short = caller.send(timeout=int(short_s * 1e6))
        long = caller.send(timeout=int(20 * TIMEOUT_S * 1e6))
        found = caller.answers(HOLD - 1)
    for number, least_s in ((usual, TIMEOUT_S), (short, short_s), (long, TIMEOUT_S)):
        result, error, took_s = found[number]
        assert result is None
        assert "StatusCode.UNAVAILABLE" in str(error)
        assert "Request timeout expired" in str(error)
        assert took_s >= least_s
    assert found[short][2] < TIMEOUT_S
    assert found[long][2] < 5 * TIMEOUT_S


@pytest.mark.parametrize("door", DOORS)
def test_who_leaves_while_queued_is_not_executed_and_leaves_the_others_alone(
    stack: Stack, door: str
) -> None:
    model = f"left_{door}"
    with Caller(stack, model) as caller:
        caller.send()
        caller.send()
        caller.until_waiting(2)
        leave = enter(stack, door, model)
        caller.until_waiting(3)
        leave()
        caller.until_waiting(2)
        while_it_waits = [caller.send() for _ in range(HOLD - 2)]
        found = caller.answers(HOLD)
        assert caller.executions == 1
    assert set(while_it_waits) < set(found)
    for number, (result, error, _) in found.items():
        assert error is None, str(error)
        assert result.as_numpy("Y").tolist() == [[2 * number]]
        assert result.as_numpy("ABOUT")[0, 0] == HOLD
    failed = f'nv_inference_request_failure{{model="{model}"'
    eventually(lambda: shown(stack, failed, "CANCELED") == shown(stack, failed) == 1)


def test_whose_deadline_passes_while_queued_is_not_executed(stack: Stack) -> None:
    with Caller(stack, "left_late") as caller:
        caller.send()
        late = caller.send(client_timeout=0.5)
        ((_, error, _),) = caller.answers(1).values()
        assert "DEADLINE_EXCEEDED" in str(error) or "Deadline Exceeded" in str(error)
        caller.until_waiting(1)
        for _ in range(HOLD - 1):
            caller.send()
        found = caller.answers(HOLD)
        assert caller.executions == 1
    assert late not in found
    assert all(found[n][0].as_numpy("ABOUT")[0, 0] == HOLD for n in found)


def test_a_queue_takes_exactly_as_many_as_it_may(stack: Stack) -> None:
    with Caller(stack, "narrow") as caller:
        for _ in range(QUEUE_SIZE):
            caller.send(client_timeout=10)
        caller.until_waiting(QUEUE_SIZE)
        refused = [caller.send() for _ in range(2)]
        found = caller.answers(2)
        assert sorted(found) == refused
        for _, error, _ in found.values():
            assert "StatusCode.UNAVAILABLE" in str(error)
            assert "Exceeds maximum queue size" in str(error)
        assert caller.is_silent


def test_a_wrong_sized_output_is_an_error_for_everyone_in_the_batch(
    stack: Stack,
) -> None:
    with Caller(stack, "rows") as caller:
        for _ in range(HOLD):
            caller.send()
        found = caller.answers(HOLD)
    for result, error, _ in found.values():
        assert result is None
        assert "StatusCode.INTERNAL" in str(error)
        assert f"expected {HOLD} rows" in str(error)
        assert f"produced {2 * HOLD}" in str(error)
