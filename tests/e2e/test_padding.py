"""Requests of different lengths behind the whole stack, as a client sees them."""

import queue
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(180)

LENGTHS = range(5, 61)
BUCKETS = (16, 32, 64)
DELAY_US = 100_000
PAD_VALUE = 7
TENSORS = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] },
        { name: "MASK" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "TOTAL" data_type: TYPE_FP32 dims: [ 1 ] },
         { name: "CENTERED" data_type: TYPE_FP32 dims: [ -1 ] },
         { name: "WIDTH" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
# Text format joins strings that follow each other; a string ends with its line.
PADDING = """
parameters { key: "nereid_padding" value { string_value:
  '{ "inputs": {"X": {"dims": [0], "value": %d}}, "buckets": %s,'
  ' "mask": {"name": "MASK"}, "outputs": {"CENTERED": {"dim": 0}} }' } }
"""


def masked_model() -> bytes:
    """Return an ONNX model.

    TOTAL is the sum of X where MASK is 1, CENTERED is X less that, and WIDTH how
    many elements the model was given in each row.
    """
    variable: list[str | int | None] = ["rows", "length"]
    single: list[str | int | None] = ["rows", 1]
    info = helper.make_tensor_value_info
    kind = TensorProto.FLOAT
    nodes = [
        helper.make_node("Mul", ["X", "MASK"], ["real"]),
        helper.make_node("ReduceSum", ["real", "axis"], ["TOTAL"], keepdims=1),
        helper.make_node("Sub", ["X", "TOTAL"], ["CENTERED"]),
        helper.make_node("Equal", ["X", "X"], ["here"]),
        helper.make_node("Cast", ["here"], ["ones"], to=kind),
        helper.make_node("ReduceSum", ["ones", "axis"], ["WIDTH"], keepdims=1),
    ]
    graph = helper.make_graph(
        nodes,
        "masked",
        [info("X", kind, variable), info("MASK", kind, variable)],
        [
            info("TOTAL", kind, single),
            info("CENTERED", kind, variable),
            info("WIDTH", kind, single),
        ],
        [helper.make_tensor("axis", TensorProto.INT64, [1], [1])],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    content: bytes = model.SerializeToString()
    return content


def write(repository: Path, name: str, extra: str = "") -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(masked_model())
    (repository / name / "config.pbtxt").write_text(
        f'backend: "onnxruntime" max_batch_size: 64 {TENSORS}\n'
        f"dynamic_batching {{ max_queue_delay_microseconds: {DELAY_US} }}\n"
        f"instance_group [ {{ kind: KIND_CPU count: 1 }} ]\n{extra}"
    )


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("models")
    write(repository, "padded", PADDING % (PAD_VALUE, []))
    write(repository, "bucketed", PADDING % (PAD_VALUE, list(BUCKETS)))
    write(repository, "plain")
    with running_stack(repository) as running:
        yield running


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as connected:
        yield connected


def values(length: int, rows: int = 1) -> NDArray[np.float32]:
    """Return a request: whole numbers, so that their sum is exact in any order."""
    rng = np.random.default_rng(length)
    return rng.integers(-50, 50, (rows, length)).astype(np.float32)


def tensor(name: str, array: NDArray[np.float32]) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), "FP32")
    made.set_data_from_numpy(array)
    return made


def infer_at_once(
    client: triton.InferenceServerClient,
    model: str,
    requests: Sequence[NDArray[np.float32]],
    *,
    with_mask: bool = False,
) -> list[Any]:
    """Send all requests before the first answer; return the answers, in order."""
    answers: queue.SimpleQueue[tuple[int, Any, Any]] = queue.SimpleQueue()
    for number, array in enumerate(requests):
        inputs = [tensor("X", array)]
        if with_mask:
            inputs.append(tensor("MASK", np.ones_like(array)))

        def answered(result: Any, error: Any, number: int = number) -> None:  # noqa: ANN401 - tritonclient is untyped
            answers.put((number, result, error))

        client.async_infer(model, inputs, answered)
    found = {}
    for _ in requests:
        number, result, error = answers.get(timeout=30)
        assert error is None, f"{requests[number].shape}: {error}"
        found[number] = result
    return [found[number] for number in range(len(requests))]


def outputs(result: Any) -> list[NDArray[np.float32]]:  # noqa: ANN401 - tritonclient is untyped
    return [result.as_numpy(name) for name in ("TOTAL", "CENTERED")]


def executions(client: triton.InferenceServerClient, model: str) -> int:
    (found,) = client.get_inference_statistics(model).model_stats
    return int(found.execution_count)


def assert_as_if_alone(
    client: triton.InferenceServerClient,
    requests: Sequence[NDArray[np.float32]],
    results: Sequence[Any],
) -> None:
    expected = infer_at_once(client, "plain", requests, with_mask=True)
    for array, result, wanted in zip(requests, results, expected, strict=True):
        total, centered = outputs(result)
        assert centered.shape == array.shape
        np.testing.assert_array_equal(total, array.sum(axis=1, keepdims=True))
        np.testing.assert_array_equal(centered, array - total)
        np.testing.assert_array_equal(centered, wanted.as_numpy("CENTERED"))
        np.testing.assert_array_equal(total, wanted.as_numpy("TOTAL"))


def test_any_lengths_share_executions_and_get_what_they_would_get_alone(
    client: triton.InferenceServerClient,
) -> None:
    requests = [values(length) for length in LENGTHS]
    before = executions(client, "padded")
    results = infer_at_once(client, "padded", requests)
    took = executions(client, "padded") - before
    assert took <= len(requests) // 8
    widths = {int(result.as_numpy("WIDTH")[0, 0]) for result in results}
    assert len(widths) == took
    assert max(LENGTHS) in widths
    assert_as_if_alone(client, requests, results)


def test_requests_of_several_rows_are_padded_too(
    client: triton.InferenceServerClient,
) -> None:
    requests = [values(9, rows=3), values(4), values(30, rows=2)]
    results = infer_at_once(client, "padded", requests)
    assert_as_if_alone(client, requests, results)


@pytest.mark.parametrize("bucket", BUCKETS)
def test_lengths_of_one_bucket_share_executions_of_its_width(
    client: triton.InferenceServerClient, bucket: int
) -> None:
    lengths = range(max(5, bucket // 2 + 1), min(bucket, max(LENGTHS)) + 1)
    requests = [values(length) for length in lengths]
    before = executions(client, "bucketed")
    results = infer_at_once(client, "bucketed", requests)
    assert executions(client, "bucketed") - before <= len(requests) // 4
    assert {int(r.as_numpy("WIDTH")[0, 0]) for r in results} == {bucket}
    assert_as_if_alone(client, requests, results)


def test_all_buckets_at_once_and_what_is_longer_than_all(
    client: triton.InferenceServerClient,
) -> None:
    requests = [values(length) for length in (5, 60, 17, 16, 70, 33, 32, 64, 65)]
    results = infer_at_once(client, "bucketed", requests)
    widths = [int(result.as_numpy("WIDTH")[0, 0]) for result in results]
    assert widths == [16, 64, 32, 16, 70, 64, 32, 64, 65]
    assert_as_if_alone(client, requests, results)


def test_without_the_declaration_lengths_are_executed_apart(
    client: triton.InferenceServerClient,
) -> None:
    requests = [values(length) for length in (10, 20, 30)]
    before = executions(client, "plain")
    results = infer_at_once(client, "plain", requests, with_mask=True)
    assert executions(client, "plain") - before == len(requests)
    widths = [int(result.as_numpy("WIDTH")[0, 0]) for result in results]
    assert widths == [10, 20, 30]
    for array, result in zip(requests, results, strict=True):
        assert outputs(result)[1].shape == array.shape
        assert outputs(result)[0] == array.sum()


def test_clients_are_not_asked_for_the_mask(
    client: triton.InferenceServerClient,
) -> None:
    metadata = client.get_model_metadata("padded")
    assert [one.name for one in metadata.inputs] == ["X"]
    config = client.get_model_config("padded").config
    assert [one.name for one in config.input] == ["X", "MASK"]
