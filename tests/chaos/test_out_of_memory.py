"""Batches that do not fit into memory: run in parts, and their size is remembered."""

import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.chaos.load import ask
from tests.support.stack import Stack, build_demo, running_stack

pytestmark = pytest.mark.timeout(120)

FITS = 2
TOGETHER = 8
MODEL = f"""
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        if len(requests) > {FITS}:
            raise %s
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            together = np.full((1, 1), len(requests), np.int32)
            tensors = [pb_utils.Tensor("Y", x), pb_utils.Tensor("TOGETHER", together)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""
ERRORS = {
    "python": "MemoryError()",
    "cuda": 'RuntimeError("CUDA error: out of memory")',
}
CONFIG = f"""
backend: "python" max_batch_size: 16
input [ {{ name: "X" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }},
         {{ name: "TOGETHER" data_type: TYPE_INT32 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
dynamic_batching {{
  preferred_batch_size: [ {TOGETHER} ] max_queue_delay_microseconds: 1000000
}}
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("demo") / "models"
    build_demo(repository, "--only", "simple")
    for name, error in ERRORS.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL % error)
        (repository / name / "config.pbtxt").write_text(CONFIG)
    with running_stack(repository) as running:
        yield running


def infer_at_once(client: Any, model: str) -> list[int]:  # noqa: ANN401 - tritonclient is untyped
    """Send requests before the first answer; return with how many each was run."""
    answers: queue.SimpleQueue[tuple[int, Any, Any]] = queue.SimpleQueue()
    for number in range(TOGETHER):
        tensor = triton.InferInput("X", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[number]], np.int32))

        def answered(result: Any, error: Any, number: int = number) -> None:  # noqa: ANN401
            answers.put((number, result, error))

        client.async_infer(model, [tensor], answered)
    together = []
    for _ in range(TOGETHER):
        number, result, error = answers.get(timeout=30)
        assert error is None, str(error)
        assert result.as_numpy("Y").tolist() == [[number]]
        together.append(int(result.as_numpy("TOGETHER")[0, 0]))
    return together


@pytest.mark.parametrize("model", list(ERRORS))
def test_a_batch_that_does_not_fit_is_split_and_its_size_learned(
    stack: Stack, model: str
) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        worker = stack.process_of("worker")
        assert max(infer_at_once(client, model)) <= FITS
        (before,) = client.get_inference_statistics(model).model_stats
        assert max(infer_at_once(client, model)) <= FITS
        (after,) = client.get_inference_statistics(model).model_stats
        # Nothing had to be tried in vain again.
        assert after.execution_count - before.execution_count == TOGETHER // FITS
        assert stack.process_of("worker") == worker
        assert ask(client) == ""
