"""Statistics as clients see them: by REST, gRPC and Prometheus, through restarts."""

import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.stack import (
    NEREID,
    Stack,
    build_demo,
    running_stack,
)

pytestmark = pytest.mark.timeout(180)

GRPC, HTTP = tritonclient.grpc, tritonclient.http
PHASES = ("queue", "compute_input", "compute_infer", "compute_output")
# What a killed router had counted and not reported yet, with a margin for a machine
# that has other things to do.
UNREPORTED_S = 0.6
CLIENTS = 4


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("statistics") / "models"
    return build_demo(folder, "--only", "simple")


@pytest.fixture(scope="module")
def own_stack(repository: Path) -> Iterator[Stack]:
    """A stack on which only this module counts."""
    with running_stack(repository, "--metrics-config=summary_latencies=true") as stack:
        yield stack


def inputs(module: Any, rows: int = 1) -> list[Any]:  # noqa: ANN401 - untyped clients
    tensors = []
    for name in ("INPUT0", "INPUT1"):
        tensor = module.InferInput(name, [rows, 16], "INT32")
        tensor.set_data_from_numpy(np.ones((rows, 16), np.int32))
        tensors.append(tensor)
    return tensors


def by_rest(stack: Stack) -> dict[str, Any]:
    with HTTP.InferenceServerClient(f"127.0.0.1:{stack.http}") as client:
        (model,) = client.get_inference_statistics("simple")["model_stats"]
        return dict(model)


def by_grpc(stack: Stack) -> Any:  # noqa: ANN401
    with GRPC.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        (model,) = client.get_inference_statistics("simple").model_stats
        return model


def by_prometheus(stack: Stack) -> dict[str, float]:
    """Return the values of the model's series, by name and labels but its own."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{stack.metrics}/metrics").read()
    found = {}
    for line in page.decode().splitlines():
        if match := re.fullmatch(
            r'(\w+)\{model="simple",version="1"(.*)\} (\S+)', line
        ):
            found[match[1] + match[2]] = float(match[3])
    return found


def test_every_way_to_ask_tells_the_same(own_stack: Stack) -> None:
    with GRPC.InferenceServerClient(f"127.0.0.1:{own_stack.grpc}") as client:
        for rows in (1, 1, 3):
            client.infer("simple", inputs(GRPC, rows))
    with HTTP.InferenceServerClient(f"127.0.0.1:{own_stack.http}") as client:
        client.infer("simple", inputs(HTTP, 2))
        wrong = HTTP.InferInput("INPUT0", [1, 16], "INT32")
        wrong.set_data_from_numpy(np.ones((1, 16), np.int32))
        with pytest.raises(InferenceServerException):
            client.infer("simple", [wrong])
    rest, grpc, prometheus = (
        by_rest(own_stack),
        by_grpc(own_stack),
        by_prometheus(own_stack),
    )
    # A request that admission refused was never the model's.
    assert rest["inference_stats"]["fail"]["count"] == 0
    assert rest["inference_count"] == grpc.inference_count == 7
    assert rest["execution_count"] == grpc.execution_count == 4
    assert rest["last_inference"] == grpc.last_inference
    assert abs(grpc.last_inference / 1000 - time.time()) < 60
    assert prometheus["nv_inference_count"] == 7
    assert prometheus["nv_inference_exec_count"] == 4
    assert prometheus["nv_inference_request_success"] == 4
    assert prometheus['nv_inference_request_failure,reason="OTHER"'] == 0
    assert prometheus["nv_inference_request_summary_us_count"] == 4
    for phase in ("success", *PHASES):
        counted = rest["inference_stats"][phase]
        same = getattr(grpc.inference_stats, phase)
        assert (counted["count"], counted["ns"]) == (same.count, same.ns)
        word = "request" if phase == "success" else phase
        duration_us = prometheus[f"nv_inference_{word}_duration_us"]
        assert duration_us == counted["ns"] // 1000
    assert {
        b["batch_size"]: b["compute_infer"]["count"] for b in rest["batch_stats"]
    } == {
        1: 2,
        2: 1,
        3: 1,
    }


def test_the_parts_of_a_request_fit_into_the_whole(own_stack: Stack) -> None:
    # Quantiles are of the last while: there has to be a request in it.
    with GRPC.InferenceServerClient(f"127.0.0.1:{own_stack.grpc}") as client:
        client.infer("simple", inputs(GRPC))
    stats = by_rest(own_stack)["inference_stats"]
    parts_ns = sum(stats[phase]["ns"] for phase in PHASES)
    assert 0 < parts_ns <= stats["success"]["ns"]
    quantiles = by_prometheus(own_stack)
    median_us = quantiles['nv_inference_request_summary_us,quantile="0.5"']
    assert 0 < median_us < stats["success"]["ns"] / 1000


def test_the_server_never_took_longer_than_its_client_waited(own_stack: Stack) -> None:
    """What makes the two halves of perf_analyzer's report fit together."""
    requests = 100
    before = by_rest(own_stack)["inference_stats"]
    with GRPC.InferenceServerClient(f"127.0.0.1:{own_stack.grpc}") as client:
        tensors = inputs(GRPC)
        began_ns = time.perf_counter_ns()
        for _ in range(requests):
            client.infer("simple", tensors)
        waited_ns = time.perf_counter_ns() - began_ns
    after = by_rest(own_stack)["inference_stats"]
    took_ns = {}
    for phase in ("success", *PHASES):
        assert after[phase]["count"] - before[phase]["count"] == requests
        took_ns[phase] = after[phase]["ns"] - before[phase]["ns"]
        assert took_ns[phase] > 0
    assert sum(took_ns[phase] for phase in PHASES) <= took_ns["success"] <= waited_ns


def test_a_client_that_asks_gets_the_times_of_its_request(own_stack: Stack) -> None:
    wish = {"nereid_timing": True}
    with GRPC.InferenceServerClient(f"127.0.0.1:{own_stack.grpc}") as client:
        asked = client.infer("simple", inputs(GRPC, 2), parameters=wish).get_response()
        plain = client.infer("simple", inputs(GRPC, 2)).get_response()
    assert asked.parameters["nereid_batch_size"].int64_param == 2
    assert asked.parameters["nereid_retries"].int64_param == 0
    assert asked.parameters["nereid_compute_infer_ns"].int64_param > 0
    assert asked.parameters["nereid_worker"].string_param == "cpu"
    assert not plain.parameters
    with HTTP.InferenceServerClient(f"127.0.0.1:{own_stack.http}") as client:
        asked = client.infer("simple", inputs(HTTP), parameters=wish)
        plain = client.infer("simple", inputs(HTTP))
    assert asked.get_response()["parameters"]["nereid_batch_size"] == 1
    assert "parameters" not in plain.get_response()


def test_rest_tells_the_times_in_server_timing(own_stack: Stack) -> None:
    tensors = [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
        for name in ("INPUT0", "INPUT1")
    ]
    request = {"inputs": tensors, "parameters": {"nereid_timing": True}}
    body = json.dumps(request).encode()
    url = f"http://127.0.0.1:{own_stack.http}/v2/models/simple/infer"
    with urllib.request.urlopen(url, body) as response:
        timing = response.headers["server-timing"]
    assert re.match(r"queue;dur=[\d.e-]+, input;dur=[\d.e-]+, infer;dur=", timing)


def test_the_root_of_the_metrics_port_is_an_empty_page(own_stack: Stack) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{own_stack.metrics}/") as response:
        assert (response.status, response.read()) == (200, b"")


def test_the_command_shows_a_table_and_resets(own_stack: Stack) -> None:
    control = _control_of(own_stack)
    shown = _stats(control).splitlines()
    assert shown[0].startswith("MODEL")
    assert shown[1].split()[:2] == ["simple", "1"]
    assert _stats(control, "--reset=simple") == "reset simple, versions: 1\n"
    assert by_rest(own_stack)["inference_count"] == 0
    with GRPC.InferenceServerClient(f"127.0.0.1:{own_stack.grpc}") as client:
        client.infer("simple", inputs(GRPC))
    assert by_prometheus(own_stack)["nv_inference_count"] == 1


def test_statistics_outlive_the_whole_stack(repository: Path, tmp_path: Path) -> None:
    for counted in (2, 4):
        with running_stack(repository, f"--state-dir={tmp_path}") as stack:
            with GRPC.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
                for _ in range(2):
                    client.infer("simple", inputs(GRPC))
            if counted == 4:
                assert by_rest(stack)["inference_count"] == counted
            # Not asked for the first time: what was not reported is at the stop.


def test_statistics_can_be_switched_off(repository: Path) -> None:
    text = "the server does not support model statistics"
    with running_stack(repository, "--allow-statistics=false") as stack:
        with GRPC.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
            client.infer("simple", inputs(GRPC))
            with pytest.raises(InferenceServerException, match=text) as caught:
                client.get_inference_statistics("simple")
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
            assert "statistics" not in client.get_server_metadata().extensions
        with HTTP.InferenceServerClient(f"127.0.0.1:{stack.http}") as client:
            assert "statistics" not in client.get_server_metadata()["extensions"]
        url = f"http://127.0.0.1:{stack.http}/v2/models/stats"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url)
        assert refused.value.code == 503
        assert json.load(refused.value) == {"error": text}
        assert "nv_inference_count" not in by_prometheus(stack)


class Load:
    """Clients that infer until told to stop, and remember when they succeeded."""

    def __init__(self, stack: Stack) -> None:
        self._address = f"127.0.0.1:{stack.grpc}"
        self._stopping = threading.Event()
        self._news = threading.Condition()
        self.succeeded_at: list[float] = []
        self.failed = 0
        self._threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def until_more(self, count: int) -> None:
        """Wait for so many more successes."""
        with self._news:
            wanted = len(self.succeeded_at) + count
            enough = self._news.wait_for(lambda: len(self.succeeded_at) >= wanted, 60)
        assert enough, f"only {len(self.succeeded_at)} of {wanted} succeeded in time"

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with GRPC.InferenceServerClient(self._address) as client:
            tensors = inputs(GRPC)
            while not self._stopping.is_set():
                try:
                    client.infer("simple", tensors, client_timeout=5)
                except InferenceServerException:
                    with self._news:
                        self.failed += 1
                    self._stopping.wait(0.02)
                else:
                    with self._news:
                        self.succeeded_at.append(time.monotonic())
                        self._news.notify()


def test_a_killed_router_takes_only_its_last_moment_with_it(repository: Path) -> None:
    with running_stack(repository) as stack:
        load = Load(stack)
        load.until_more(200)
        kills = []
        for _ in range(2):
            kills.append(time.monotonic())
            os.kill(stack.process_of("router"), signal.SIGKILL)
            load.until_more(200)
        load.stop()
        counted = by_rest(stack)["inference_stats"]
    succeeded = len(load.succeeded_at)
    unreported = sum(
        any(kill - UNREPORTED_S < at < kill + UNREPORTED_S for kill in kills)
        for at in load.succeeded_at
    )
    assert succeeded - unreported <= counted["success"]["count"]
    assert counted["success"]["count"] <= succeeded + CLIENTS * len(kills)
    assert counted["fail"]["count"] <= load.failed


def test_a_killed_worker_costs_no_count(repository: Path) -> None:
    with running_stack(repository) as stack:
        load = Load(stack)
        for _ in range(2):
            load.until_more(100)
            os.kill(stack.process_of("worker"), signal.SIGKILL)
        load.until_more(100)
        load.stop()
        counted = by_rest(stack)["inference_stats"]
    assert counted["success"]["count"] == len(load.succeeded_at)
    assert counted["fail"]["count"] == load.failed


def _control_of(stack: Stack) -> str:
    (line,) = [line for line in stack.processes().values() if "nereid control" in line]
    match = re.search(r"--listen[= ](\S+)", line)
    assert match is not None
    return match[1]


def _stats(control: str, *arguments: str) -> str:
    command = [str(NEREID), "stats", f"--control={control}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
