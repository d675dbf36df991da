"""Metrics that a Python model keeps, on the page of the whole stack."""

import contextlib
import os
import signal
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.chaos.load import wait_until
from tests.support.stack import Stack, has_ended, running_stack

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


def value_of(stack: Stack, series: str, path: str = "/metrics") -> float:
    """Return what the page has of one series.

    Raises:
        LookupError: it is not there.
    """
    for line in lines(stack, path):
        if line.rpartition(" ")[0] == series:
            return float(line.rpartition(" ")[2])
    raise LookupError(series)


def shown(stack: Stack, series: str) -> float | None:
    """Return the same; None while the page, or the series, is not there."""
    with contextlib.suppress(urllib.error.URLError, LookupError):
        return value_of(stack, series)
    return None


def has_used_a_cpu(stack: Stack, path: str) -> bool:
    return value_of(stack, "process_cpu_seconds_total", path) > 0


def is_served(stack: Stack) -> bool:
    """Have one row inferred, if that is possible."""
    with contextlib.suppress(InferenceServerException):
        infer(stack, 1, last=1)
        return True
    return False


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
        within_s=30,
    )
    for path in ("/metrics/control", "/metrics/router/0", "/metrics/worker/cpu"):
        wait_until(partial(has_used_a_cpu, stack, path), within_s=30)
    labelled = [x for x in lines(stack) if x.startswith("nereid_process_cpu_seconds_")]
    assert len(labelled) == 3
    with pytest.raises(urllib.error.HTTPError) as caught:
        lines(stack, "/metrics/router/7")
    assert caught.value.code == 404


def test_a_models_own_metrics_come_and_go_with_it(stack: Stack) -> None:
    wait_until(lambda: 'seen_total{kind="row"} 1' in lines(stack), within_s=30)
    for rows in (1, 3, 2, 5):
        infer(stack, rows, last=rows)
    # Both instances have counted: their sum is shown.
    wait_until(lambda: 'seen_total{kind="row"} 12' in lines(stack), within_s=30)
    page = lines(stack)
    assert "# HELP seen_total Rows seen" in page
    assert "# TYPE seen_total counter" in page
    assert 'sizes_bucket{le="4"} 4' in page
    assert "sizes_sum 12" in page
    assert any(line.startswith("last_value ") for line in page)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        client.unload_model("counting")
        wait_until(
            lambda: not any("seen_total" in line for line in lines(stack)), within_s=30
        )
        client.load_model("counting")
    # Counters go on where they were; a gauge nobody has set yet is not shown.
    wait_until(lambda: 'seen_total{kind="row"} 12' in lines(stack), within_s=30)
    infer(stack, 1, last=1)
    wait_until(lambda: 'seen_total{kind="row"} 13' in lines(stack), within_s=30)
    assert 'sizes_bucket{le="4"} 5' in lines(stack)


def test_the_statistics_tell_what_memory_a_model_took(stack: Stack) -> None:
    with triton_http.InferenceServerClient(f"127.0.0.1:{stack.http}") as client:
        (by_rest,) = client.get_inference_statistics("counting")["model_stats"]
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        (by_grpc,) = client.get_inference_statistics("counting").model_stats
    (use,) = by_rest["memory_usage"]
    (same,) = by_grpc.memory_usage
    assert (use["type"], use["id"]) == (same.type, same.id) == ("CPU", 0)
    # Two processes, each with an interpreter and numpy.
    assert use["byte_size"] == same.byte_size > 10 << 20
    labels = 'model="counting",version="1",memory="CPU",device="0"'
    assert value_of(stack, f"nereid_model_memory_bytes{{{labels}}}") == same.byte_size


@pytest.mark.parametrize("role", ["model process", "worker", "control"])
def test_what_models_counted_outlives_who_is_killed(stack: Stack, role: str) -> None:
    before = value_of(stack, 'seen_total{kind="row"}')
    restarts = value_of(stack, "nereid_worker_restarts_total")
    # A model's process is called by its instance.
    victims = [
        number
        for number, line in stack.processes().items()
        if (role == "model process" and "counting_0_" in line)
        or f"nereid {role}" in line
    ]
    assert victims, stack.processes()
    for number in victims:
        os.kill(number, signal.SIGKILL)
    for number in victims:
        assert has_ended(number, 10)
    wait_until(lambda: is_served(stack), within_s=30)
    infer(stack, 3, last=1)
    wait_until(
        lambda: shown(stack, 'seen_total{kind="row"}') == before + 4, within_s=30
    )
    expected = restarts + (role == "worker")
    wait_until(
        lambda: shown(stack, "nereid_worker_restarts_total") == expected, within_s=30
    )
