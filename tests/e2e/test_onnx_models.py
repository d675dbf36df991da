"""ONNX models with operators and parameters of their own, as a client sees them."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_extensions
import pytest
import tritonclient.http as triton_http
from onnx import helper

from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(180)

DOMAIN = "ai.onnx.contrib"
PARAMETER = 'parameters {{ key: "{}" value: {{ string_value: "{}" }} }}'
ACCELERATOR = """instance_group [ {{ kind: KIND_CPU }} ] optimization {{
  execution_accelerators {{ cpu_execution_accelerator: [ {{ name: "{}" }} ] }} }}"""


def write(
    repository: Path, name: str, config: str, *, operator: str, kind: int
) -> Path:
    """Write a model of one operator with one input and one output."""
    tensors = [helper.make_tensor_value_info(name, kind, ["n"]) for name in "XY"]
    domain = DOMAIN if operator == "StringUpper" else ""
    node = helper.make_node(operator, ["X"], ["Y"], domain=domain)
    graph = helper.make_graph([node], "tiny", tensors[:1], tensors[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 9
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(model.SerializeToString())
    (repository / name / "config.pbtxt").write_text(config)
    return version


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("models")
    text, number = onnx.TensorProto.STRING, onnx.TensorProto.FLOAT
    library = 'model_operations { op_library_filename: "libops.so" }'
    folder = write(repository, "upper", library, operator="StringUpper", kind=text)
    path = Path(onnxruntime_extensions.get_library_path())
    (folder / "libops.so").symlink_to(path)
    broken = {
        "threads": PARAMETER.format("intra_op_thread_count", "many"),
        "openvino": ACCELERATOR.format("openvino"),
        "warp": ACCELERATOR.format("warp"),
    }
    for name, config in broken.items():
        write(repository, name, config, operator="Neg", kind=number)
    with running_stack(repository, "--exit-on-error=false") as running:
        yield running


def test_a_model_with_operators_of_a_library_answers(stack: Stack) -> None:
    tensor = triton_http.InferInput("X", [2, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"ort"], [b"Nereid"]], object))
    with triton_http.InferenceServerClient(f"127.0.0.1:{stack.http}") as client:
        found = client.infer("upper", [tensor]).as_numpy("Y")
    assert found.tolist() == [[b"ORT"], [b"NEREID"]]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("threads", "'intra_op_thread_count' of model 'threads' is 'many'"),
        ("openvino", "'openvino' needs ONNX Runtime's OpenVINOExecutionProvider"),
        ("warp", "unknown Execution Accelerator 'warp' is requested"),
    ],
)
def test_what_cannot_be_done_as_asked_is_told_by_the_index(
    stack: Stack, model: str, reason: str
) -> None:
    url = f"http://127.0.0.1:{stack.http}/v2/repository/index"
    with urllib.request.urlopen(urllib.request.Request(url, b"{}")) as answer:
        found = {one["name"]: one for one in json.load(answer)}[model]
    assert found["state"] == "UNAVAILABLE"
    assert found["reason"].startswith("Invalid argument: ")
    assert reason in found["reason"]


def test_the_log_tells_who_executes_a_model(stack: Stack) -> None:
    assert 'model="upper" version=1 nodes="CPUExecutionProvider: 1"' in stack.output
