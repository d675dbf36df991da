"""One gRPC message of more than a GiB, through every hop."""

import textwrap
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.support.stack import running_stack

BYTES: Final = (1 << 30) + (1 << 20)
# Client, router, worker and model hold it up to three times each.
NEEDED_BYTES: Final = 16 << 30
CONFIG: Final = """
backend: "python" max_batch_size: 0
input [ { name: "IN" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ 2 ] } ]
"""
MODEL: Final = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()
        seen = np.array([len(x), int(x[-1])], np.int64)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", seen)])]
"""


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


@pytest.mark.timeout(180)
@pytest.mark.skipif(available_bytes() < NEEDED_BYTES, reason="too little memory")
def test_a_message_of_more_than_a_gibibyte_arrives_whole(tmp_path: Path) -> None:
    version = tmp_path / "length" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(textwrap.dedent(MODEL))
    (tmp_path / "length" / "config.pbtxt").write_text(CONFIG)
    sent = np.zeros(BYTES, np.uint8)
    sent[-1] = 7
    tensor = triton.InferInput("IN", [BYTES], "UINT8")
    tensor.set_data_from_numpy(sent)
    del sent
    with running_stack(tmp_path) as stack:
        before = stack.processes()
        with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
            found = client.infer("length", [tensor], client_timeout=150)
        assert found.as_numpy("OUT").tolist() == [BYTES, 7]
        assert stack.processes().keys() == before.keys()
