"""Python models behind the whole stack, as a client sees them."""

import json
import os
import signal
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(180)

TENSORS = """
input [ { name: "X" data_type: TYPE_INT32 dims: [ 2 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 2 ] } ]
"""

DOUBLE = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            x = pb_utils.get_input_tensor_by_name(r, "X").as_numpy()
            if x[0, 0] < 0:
                os._exit(1)
            if x[0, 0] == 0:
                error = pb_utils.TritonError("zero", pb_utils.TritonError.INVALID_ARG)
                out.append(pb_utils.InferenceResponse(error=error))
                continue
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * x)]))
        return out
"""

QUADRUPLE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        config.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [2]})
        config.add_output({"name": "Y", "data_type": "TYPE_INT32", "dims": [2]})
        return config

    def execute(self, requests):
        return [self.answer(r) for r in requests]

    def answer(self, request):
        inputs = request.inputs()
        for _ in range(2):
            call = pb_utils.InferenceRequest(
                model_name="double", requested_output_names=["Y"], inputs=inputs,
                trace=request.trace())
            response = call.exec()
            if response.has_error():
                return response
            y = pb_utils.get_output_tensor_by_name(response, "Y")
            inputs = [pb_utils.Tensor("X", y.as_numpy())]
        return pb_utils.InferenceResponse([y])
"""


def write(repository: Path, name: str, code: str, config: str | None) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(textwrap.dedent(code))
    if config is not None:
        text = f'backend: "python" max_batch_size: 8 {config}'
        (repository / name / "config.pbtxt").write_text(text)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, traces: Path) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("models")
    two = "instance_group [ { kind: KIND_CPU count: 2 } ]"
    write(repository, "double", DOUBLE, TENSORS + two)
    write(repository, "quadruple", QUADRUPLE, None)
    write(repository, "broken", "import no_such_module_x", TENSORS)
    flags = [f"--trace-config=triton,file={traces / 'trace.json'}"]
    flags += ["--trace-config=level=OFF", "--trace-config=rate=1"]
    with running_stack(repository, "--exit-on-error=false", *flags) as running:
        yield running


def infer(stack: Stack, model: str, *values: int) -> list[int]:
    tensor = triton_grpc.InferInput("X", [1, 2], "INT32")
    tensor.set_data_from_numpy(np.array([values], np.int32))
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        found: list[int] = client.infer(model, [tensor]).as_numpy("Y")[0].tolist()
        return found


def instances(stack: Stack, model: str) -> dict[str, int]:
    """Return the processes of a model's instances, by name."""
    title = f"nereid model {model}_0_"
    lines = stack.processes().items()
    return {line.strip(): n for n, line in lines if line.startswith(title)}


def test_a_python_model_answers(stack: Stack) -> None:
    assert infer(stack, "double", 1, 2) == [2, 4]


def test_a_python_model_calls_another_and_completes_its_configuration(
    stack: Stack,
) -> None:
    assert infer(stack, "quadruple", 1, 2) == [4, 8]


def test_what_a_model_asks_of_another_is_part_of_its_trace(
    stack: Stack, traces: Path
) -> None:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        level = {"trace_level": ["TIMESTAMPS"], "log_frequency": "1"}
        client.update_trace_settings("quadruple", level)
        assert infer(stack, "quadruple", 1, 2) == [4, 8]
        client.update_trace_settings("quadruple", dict.fromkeys(level))
    (file,) = traces.glob("trace.json.*")
    requests = [one for one in json.loads(file.read_text()) if "model_name" in one]
    root, *nested = requests
    assert (root["model_name"], "parent_id" in root) == ("quadruple", False)
    assert [(one["model_name"], one["parent_id"]) for one in nested] == [
        ("double", root["id"])
    ] * 2


def test_every_instance_is_a_process_of_its_own(stack: Stack) -> None:
    assert len(set(instances(stack, "double").values())) == 2


def test_an_error_of_a_called_model_keeps_its_code(stack: Stack) -> None:
    with pytest.raises(InferenceServerException, match="zero") as caught:
        infer(stack, "quadruple", 0, 0)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_a_model_that_dies_takes_nothing_with_it(stack: Stack) -> None:
    worker = stack.process_of("worker")
    others = instances(stack, "quadruple")
    with pytest.raises(InferenceServerException, match="is not healthy"):
        infer(stack, "double", -1, 0)
    for _ in range(4):
        assert infer(stack, "double", 3, 4) == [6, 8]
    assert stack.process_of("worker") == worker
    assert instances(stack, "quadruple") == others


def test_a_model_that_is_killed_stands_again(stack: Stack) -> None:
    for process in instances(stack, "double").values():
        os.kill(process, signal.SIGKILL)
    for number in range(1, 5):
        assert infer(stack, "double", number, 0) == [2 * number, 0]


def test_no_process_is_left_of_a_killed_worker(stack: Stack) -> None:
    before = set(instances(stack, "double").values())
    os.kill(stack.process_of("worker"), signal.SIGKILL)
    tensor = triton_grpc.InferInput("X", [1, 2], "INT32")
    tensor.set_data_from_numpy(np.array([[1, 1]], np.int32))
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        assert client.infer("double", [tensor], client_timeout=60) is not None
    assert before.isdisjoint(instances(stack, "double").values())


def test_what_is_wrong_with_a_model_is_in_the_index(stack: Stack) -> None:
    url = f"http://127.0.0.1:{stack.http}/v2/repository/index"
    request = urllib.request.Request(url, data=b"", method="POST")
    with urllib.request.urlopen(request) as response:  # noqa: S310 - ours
        index = json.load(response)
    (broken,) = [one for one in index if one["name"] == "broken"]
    assert broken["state"] == "UNAVAILABLE"
    assert broken["reason"].startswith(
        "Internal: ModuleNotFoundError: No module named 'no_such_module_x'\n\nAt:\n  "
    )
