"""Ragged batches behind the whole stack, as a client of Triton's sees them."""

import queue
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(180)

TOGETHER = 4
# Four rows go at once; what never has company goes after a second.
BATCHING = (
    f"dynamic_batching {{ preferred_batch_size: [ {TOGETHER} ]"
    " max_queue_delay_microseconds: 1000000 }"
)
KINDS = {
    "COUNT": "BATCH_ELEMENT_COUNT",
    "ENDS": "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BOUNDS": "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "LARGEST": "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "SHAPES": "BATCH_ITEM_SHAPE",
    "FLAT": "BATCH_ITEM_SHAPE_FLATTEN",
}
INPUT = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
"""
PYTHON_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        def respond(request):
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            many = np.full((len(x), 1), len(requests), np.float32)
            outputs = [("DOUBLE", x * 2), ("TOGETHER", many)]
            tensors = [pb_utils.Tensor(name, array) for name, array in outputs]
            return pb_utils.InferenceResponse(tensors)

        return [respond(request) for request in requests]
"""


def value(name: str, shape: Sequence[str | int]) -> Any:  # noqa: ANN401 - onnx has no types
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def constant(name: str, number: int) -> Any:  # noqa: ANN401 - onnx has no types
    return helper.make_tensor(name, TensorProto.INT64, [1], [number])


def onnx_model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: Sequence[Any],
) -> bytes:
    graph = helper.make_graph(nodes, "ragged", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    content: bytes = model.SerializeToString()
    return content


def summing_model() -> bytes:
    """Return a model of X [n], BOUNDS [requests + 1]: a sum for each, and X doubled."""
    node = helper.make_node
    nodes = [
        node("CumSum", ["X", "first"], ["sums"]),
        node("Concat", ["nothing", "sums"], ["before"], axis=0),
        node("Cast", ["BOUNDS"], ["bounds"], to=TensorProto.INT64),
        node("Gather", ["before", "bounds"], ["marks"]),
        node("Slice", ["marks", "one", "huge"], ["upper"]),
        node("Slice", ["marks", "zero", "last"], ["lower"]),
        node("Sub", ["upper", "lower"], ["totals"]),
        node("Unsqueeze", ["totals", "one"], ["TOTAL"]),
        node("Add", ["X", "X"], ["DOUBLE"]),
        node("Shape", ["totals"], ["many"]),
        node("Cast", ["many"], ["number"], to=TensorProto.FLOAT),
        node("Mul", ["TOTAL", "none"], ["noughts"]),
        node("Add", ["noughts", "number"], ["TOGETHER"]),
    ]
    constants = [
        helper.make_tensor("first", TensorProto.INT64, [], [0]),
        helper.make_tensor("nothing", TensorProto.FLOAT, [1], [0]),
        helper.make_tensor("none", TensorProto.FLOAT, [1], [0]),
        constant("zero", 0),
        constant("one", 1),
        constant("last", -1),
        constant("huge", 1 << 40),
    ]
    inputs = [value("X", ["n"]), value("BOUNDS", ["m"])]
    outputs = [
        value("TOTAL", ["r", 1]),
        value("DOUBLE", ["n"]),
        value("TOGETHER", ["r", 1]),
    ]
    return onnx_model(nodes, inputs, outputs, constants)


def describing_model() -> bytes:
    """Return a model that shows all its batch inputs in each row; SHAPES row by row."""
    node = helper.make_node
    nodes = [
        node("Shape", ["SHAPES"], ["shape"], start=0, end=1),
        node("Concat", ["shape", "one"], ["columns"], axis=0),
        node("Identity", ["SHAPES"], ["SHAPES_SEEN"]),
        node("Identity", ["X"], ["unused"]),
    ]
    outputs = [value("SHAPES_SEEN", ["r", "d"])]
    for name in KINDS:
        if name == "SHAPES":
            continue
        flat = [name, "flat"]
        nodes += [
            node("Reshape", flat, [f"{name}_row"]),
            node("Expand", [f"{name}_row", "columns"], [f"{name}_SEEN"]),
        ]
        outputs.append(value(f"{name}_SEEN", ["r", f"{name}_n"]))
    inputs = [value("X", ["n"])] + [
        value(name, ["i", "j"] if name == "SHAPES" else [f"{name}_m"]) for name in KINDS
    ]
    flat_shape = helper.make_tensor("flat", TensorProto.INT64, [2], [1, -1])
    return onnx_model(nodes, inputs, outputs, [flat_shape, constant("one", 1)])


def batch_input(name: str) -> str:
    return (
        f"batch_input [ {{ kind: {KINDS[name]} target_name: '{name}'"
        " data_type: TYPE_FP32 source_input: 'X' } ]\n"
    )


def output(name: str, dims: int) -> str:
    return f"output [ {{ name: '{name}' data_type: TYPE_FP32 dims: [ {dims} ] }} ]\n"


def write(repository: Path, name: str, content: bytes, config: str) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    is_python = b"TritonPythonModel" in content
    (version / ("model.py" if is_python else "model.onnx")).write_bytes(content)
    (repository / name / "config.pbtxt").write_text(
        f'backend: "{"python" if is_python else "onnxruntime"}" max_batch_size: 16\n'
        f"{INPUT}instance_group [ {{ kind: KIND_CPU count: 1 }} ]\n{config}"
    )


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("models")
    scatter = "batch_output [ { target_name: 'DOUBLE' source_input: 'X' } ]\n"
    summing = (
        batch_input("BOUNDS")
        + output("TOTAL", 1)
        + output("DOUBLE", -1)
        + output("TOGETHER", 1)
        + scatter
    )
    write(repository, "summing", summing_model(), summing + BATCHING)
    write(repository, "alone", summing_model(), summing)
    seen = "".join(output(f"{name}_SEEN", -1) for name in KINDS)
    described = "".join(map(batch_input, KINDS)) + seen
    write(repository, "described", describing_model(), described + BATCHING)
    python = output("DOUBLE", -1) + output("TOGETHER", 1)
    write(repository, "python", PYTHON_MODEL.encode(), python + BATCHING)
    # Not ragged as a model: it wants rows, as its configuration does not say.
    write(repository, "wrong", summing_model(), summing.replace("BOUNDS", "OTHER"))
    with running_stack(repository, "--exit-on-error=false") as running:
        yield running


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as connected:
        yield connected


def values(length: int, rows: int = 1) -> NDArray[np.float32]:
    """Return a request: whole numbers, so that their sum is exact in any order."""
    rng = np.random.default_rng(length)
    return rng.integers(-50, 50, (rows, length)).astype(np.float32)


def infer_at_once(
    client: triton.InferenceServerClient,
    model: str,
    requests: Sequence[NDArray[np.float32]],
) -> list[Any]:
    """Send all requests before the first answer; return the answers, in order."""
    answers: queue.SimpleQueue[tuple[int, Any, Any]] = queue.SimpleQueue()
    for number, array in enumerate(requests):
        tensor = triton.InferInput("X", list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)

        def answered(result: Any, error: Any, number: int = number) -> None:  # noqa: ANN401 - tritonclient is untyped
            answers.put((number, result, error))

        client.async_infer(model, [tensor], answered)
    found = {}
    for _ in requests:
        number, result, error = answers.get(timeout=30)
        assert error is None, f"{requests[number].shape}: {error}"
        found[number] = result
    return [found[number] for number in range(len(requests))]


def test_any_lengths_share_an_execution_and_get_what_they_would_get_alone(
    client: triton.InferenceServerClient,
) -> None:
    requests = [values(length) for length in (3, 40, 1, 17)]
    together = infer_at_once(client, "summing", requests)
    alone = infer_at_once(client, "alone", requests)
    for array, result, single in zip(requests, together, alone, strict=True):
        assert result.as_numpy("TOGETHER").tolist() == [[TOGETHER]]
        assert single.as_numpy("TOGETHER").tolist() == [[1]]
        for name in ("TOTAL", "DOUBLE"):
            np.testing.assert_array_equal(
                result.as_numpy(name), single.as_numpy(name), strict=True
            )
        np.testing.assert_array_equal(
            result.as_numpy("TOTAL"), array.sum(axis=1, keepdims=True)
        )
        np.testing.assert_array_equal(result.as_numpy("DOUBLE"), array * 2)


def test_every_kind_of_batch_input_tells_how_the_batch_was_put_together(
    client: triton.InferenceServerClient,
) -> None:
    lengths = [2, 4, 1, 3]
    results = infer_at_once(client, "described", [values(n) for n in lengths])
    seen = {name: results[0].as_numpy(f"{name}_SEEN") for name in KINDS}
    counts = seen["COUNT"][0].tolist()
    # In the order of their arrival, which is not always that of their sending.
    assert sorted(counts) == sorted(lengths)
    ends = np.cumsum(counts).tolist()
    assert seen["ENDS"].tolist() == [ends]
    assert seen["BOUNDS"].tolist() == [[0, *ends]]
    assert seen["LARGEST"].shape == (1, max(lengths))
    assert seen["FLAT"].tolist() == [counts]
    for length, result in zip(lengths, results, strict=True):
        assert result.as_numpy("SHAPES_SEEN").tolist() == [[length]]
        assert result.as_numpy("COUNT_SEEN").tolist() == [counts]


def test_requests_of_several_rows_are_counted_whole_and_shown_row_by_row(
    client: triton.InferenceServerClient,
) -> None:
    requests = [values(5, rows=3), values(2)]
    results = infer_at_once(client, "described", requests)
    assert sorted(results[1].as_numpy("COUNT_SEEN")[0].tolist()) == [2, 15]
    assert results[0].as_numpy("SHAPES_SEEN").tolist() == [[5], [5], [5]]
    assert results[1].as_numpy("SHAPES_SEEN").tolist() == [[2]]
    assert sorted(results[0].as_numpy("FLAT_SEEN")[0].tolist()) == [2, 5, 5, 5]


def test_a_python_model_gets_requests_of_any_lengths_in_one_call(
    client: triton.InferenceServerClient,
) -> None:
    requests = [values(length) for length in (3, 9, 1, 4)]
    for array, result in zip(
        requests, infer_at_once(client, "python", requests), strict=True
    ):
        assert result.as_numpy("TOGETHER").tolist() == [[TOGETHER]]
        np.testing.assert_array_equal(result.as_numpy("DOUBLE"), array * 2)


def test_batch_inputs_are_not_asked_of_clients(
    client: triton.InferenceServerClient,
) -> None:
    metadata = client.get_model_metadata("described")
    assert [one.name for one in metadata.inputs] == ["X"]
    config = client.get_model_config("described").config
    assert [one.target_name[0] for one in config.batch_input] == list(KINDS)


def test_a_model_without_the_batch_input_is_refused_with_the_reason(
    client: triton.InferenceServerClient,
) -> None:
    index = client.get_model_repository_index().models
    (reason,) = [one.reason for one in index if one.name == "wrong"]
    assert "configuration expects 1 inputs, model provides 2" in reason
    with pytest.raises(InferenceServerException, match="wrong"):
        infer_alone(client)


def infer_alone(client: triton.InferenceServerClient) -> None:
    tensor = triton.InferInput("X", [1, 1], "FP32")
    tensor.set_data_from_numpy(values(1))
    client.infer("wrong", [tensor])
