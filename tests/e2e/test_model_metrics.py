"""Metrics that a Python model keeps, on the page of the whole stack."""

import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests.chaos.load import wait_until
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(120)

CONFIG = """
backend: "python" max_batch_size: 8
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 2 } ]
"""

CODE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        family = pb_utils.MetricFamily
        self.families = [
            family("seen_total", "Rows seen", family.COUNTER),
            family("last_value", "Of the last row", family.GAUGE),
            family("sizes", "Rows of requests", family.HISTOGRAM),
        ]
        seen, last, sizes = self.families
        self.seen = seen.Metric(labels={"kind": "row"})
        self.last = last.Metric()
        self.sizes = sizes.Metric(buckets=[1, 4])

    def execute(self, requests):
        out = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            self.seen.increment(len(x))
            self.last.set(int(x[-1, 0]))
            self.sizes.observe(len(x))
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return out
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("models")
    version = repository / "counting" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(textwrap.dedent(CODE))
    (repository / "counting" / "config.pbtxt").write_text(CONFIG)
    explicit = ("--model-control-mode=explicit", "--load-model=counting")
    with running_stack(repository, *explicit) as running:
        yield running


def lines(stack: Stack, path: str = "/metrics") -> list[str]:
    url = f"http://127.0.0.1:{stack.metrics}{path}"
    with urllib.request.urlopen(url) as response:
        page: str = response.read().decode()
    return page.splitlines()


def infer(stack: Stack, rows: int, last: int) -> None:
    values = np.full((rows, 1), last, np.int32)
    tensor = triton_grpc.InferInput("X", [rows, 1], "INT32")
    tensor.set_data_from_numpy(values)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        client.infer("counting", [tensor])


def test_every_process_has_a_page_of_its_own(stack: Stack) -> None:
    infer(stack, 1, last=1)
    counted = 'nv_inference_count{model="counting",version="1"} 1'
    assert counted in lines(stack, "/metrics/router/0")
    wait_until(
        lambda: 'seen_total{kind="row"} 1' in lines(stack, "/metrics/worker/cpu"),
        within_s=10,
    )
    for path in ("/metrics/control", "/metrics/router/0", "/metrics/worker/cpu"):
        page = lines(stack, path)
        cpu_s = [x for x in page if x.startswith("process_cpu_seconds_total ")]
        assert len(cpu_s) == 1
        assert float(cpu_s[0].split()[1]) > 0
    labelled = [x for x in lines(stack) if x.startswith("nereid_process_cpu_seconds_")]
    assert len(labelled) == 3
    with pytest.raises(urllib.error.HTTPError) as caught:
        lines(stack, "/metrics/router/7")
    assert caught.value.code == 404


def test_a_models_own_metrics_come_and_go_with_it(stack: Stack) -> None:
    wait_until(lambda: 'seen_total{kind="row"} 1' in lines(stack), within_s=10)
    for rows in (1, 3, 2, 5):
        infer(stack, rows, last=rows)
    # Both instances have counted: their sum is shown.
    wait_until(lambda: 'seen_total{kind="row"} 12' in lines(stack), within_s=10)
    page = lines(stack)
    assert "# HELP seen_total Rows seen" in page
    assert "# TYPE seen_total counter" in page
    assert 'sizes_bucket{le="4"} 4' in page
    assert "sizes_sum 12" in page
    assert any(line.startswith("last_value ") for line in page)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        client.unload_model("counting")
        wait_until(
            lambda: not any("seen_total" in line for line in lines(stack)), within_s=10
        )
        client.load_model("counting")
    wait_until(lambda: 'seen_total{kind="row"} 0' in lines(stack), within_s=10)
