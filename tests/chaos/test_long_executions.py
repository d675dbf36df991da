"""A worker that computes for long is not taken for one that hangs."""

import textwrap
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.support.stack import running_stack

pytestmark = pytest.mark.timeout(120)

# Longer than a stopped worker goes unnoticed.
EXECUTION_S = 9

CONFIG = """
backend: "python"
max_batch_size: 1
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

SLOW = f"""
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep({EXECUTION_S})
        x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])]
"""


def test_a_long_execution_is_waited_for_and_done_once(tmp_path: Path) -> None:
    version = tmp_path / "slow" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(textwrap.dedent(SLOW))
    (tmp_path / "slow" / "config.pbtxt").write_text(CONFIG)
    tensor = triton.InferInput("X", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[7]], dtype=np.int32))
    with running_stack(tmp_path) as stack:
        with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
            result = client.infer("slow", [tensor], client_timeout=30)
            (counted,) = client.get_inference_statistics("slow").model_stats
        assert result.as_numpy("Y").tolist() == [[7]]
        assert counted.execution_count == 1
        assert "lost" not in stack.output
