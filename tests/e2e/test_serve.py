"""``nereid serve`` from outside: started, used, stopped, killed."""

import json
import os
import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.support.stack import (
    ROOT,
    SETTLED_LINE,
    Stack,
    build_demo,
    running_stack,
    started_stack,
    wait_gone,
)

pytestmark = pytest.mark.timeout(180)

ROLES = ("redis", "control", "router", "worker", "envoy")


@pytest.fixture(scope="module")
def simple(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_demo(tmp_path_factory.mktemp("demo") / "models", "--only", "simple")


@pytest.fixture(scope="module")
def stack(simple: Path) -> Iterator[Stack]:
    with running_stack(simple) as running:
        yield running


def values() -> dict[str, np.ndarray]:
    first = np.arange(16, dtype=np.int32).reshape(1, 16)
    return {"INPUT0": first, "INPUT1": np.full((1, 16), 3, dtype=np.int32)}


def inferred(client_module: object, client: object) -> tuple[np.ndarray, np.ndarray]:
    inputs = []
    for name, array in values().items():
        tensor = client_module.InferInput(name, list(array.shape), "INT32")  # type: ignore[attr-defined]
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    result = client.infer("simple", inputs)  # type: ignore[attr-defined]
    return result.as_numpy("OUTPUT0"), result.as_numpy("OUTPUT1")


def assert_right(outputs: tuple[np.ndarray, np.ndarray]) -> None:
    first, second = values().values()
    np.testing.assert_array_equal(outputs[0], first + second)
    np.testing.assert_array_equal(outputs[1], first - second)


def infer_grpc(stack: Stack) -> tuple[np.ndarray, np.ndarray]:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        return inferred(triton_grpc, client)


def test_rest_infers(stack: Stack) -> None:
    with triton_http.InferenceServerClient(f"127.0.0.1:{stack.http}") as client:
        assert client.is_server_ready()
        assert_right(inferred(triton_http, client))


def test_rest_infers_in_plain_json(stack: Stack) -> None:
    tensors = [
        {"name": n, "datatype": "INT32", "shape": [1, 16], "data": a.ravel().tolist()}
        for n, a in values().items()
    ]
    url = f"http://127.0.0.1:{stack.http}/v2/models/simple/infer"
    body = json.dumps({"inputs": tensors}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body)) as response:
        outputs = {o["name"]: o["data"] for o in json.load(response)["outputs"]}
    assert outputs["OUTPUT0"] == [number + 3 for number in range(16)]


def test_grpc_infers(stack: Stack) -> None:
    assert_right(infer_grpc(stack))


def test_grpc_infers_through_the_gateway_too(stack: Stack) -> None:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.http}") as client:
        assert_right(inferred(triton_grpc, client))


def test_metrics_are_served(stack: Stack) -> None:
    url = f"http://127.0.0.1:{stack.metrics}/metrics"
    with urllib.request.urlopen(url) as response:
        assert response.status == 200


@pytest.mark.parametrize("role", ROLES)
def test_every_process_shows_its_role(stack: Stack, role: str) -> None:
    assert stack.process_of(role)


def test_a_second_start_names_the_ports_that_are_taken(
    stack: Stack, simple: Path
) -> None:
    ports = (stack.http, stack.grpc, stack.metrics)
    with started_stack(simple, ports=ports) as second:
        assert second.wait_ended(30) == 1
    for port, flag in zip(ports, ("http", "grpc", "metrics"), strict=True):
        assert re.search(
            rf"port {port} \(\w+\) is already in use; .*--{flag}-port", second.output
        )
    assert_right(infer_grpc(stack))


def test_ctrl_c_ends_all_processes_in_order(simple: Path) -> None:
    with running_stack(simple) as stack:
        processes = stack.processes()
        assert len(processes) == 1 + len(ROLES)
        assert stack.stop() == 0
        assert wait_gone(processes, timeout_s=1) == {}
    assert "killing" not in stack.output
    assert stack.output.endswith("nereid: stopped\n")


def test_a_stack_comes_back_on_the_data_of_the_one_before(
    simple: Path, tmp_path: Path
) -> None:
    state = f"--state-dir={tmp_path / 'state'}"
    for _ in range(2):
        with running_stack(simple, state) as stack:
            assert_right(infer_grpc(stack))


def test_a_killed_parent_leaves_no_orphan(simple: Path) -> None:
    with running_stack(simple) as stack:
        processes = stack.processes()
        os.kill(stack.process.pid, signal.SIGKILL)
        assert wait_gone(processes, timeout_s=10) == {}


def test_a_model_that_fails_ends_the_start_with_its_name_and_reason(
    simple: Path, tmp_path: Path
) -> None:
    broken = shutil.copytree(simple, tmp_path / "models")
    (broken / "simple" / "1" / "model.onnx").write_bytes(b"not a model")
    with started_stack(broken) as stack:
        assert stack.wait_ended(60) == 1
        assert stack.processes() == {}
    assert re.search(r"models failed to load:\n  simple version 1: .+", stack.output)


def test_the_quickstart_shows_real_answers(simple: Path) -> None:
    with running_stack(simple, "--quickstart") as stack:
        stack.wait_for(SETTLED_LINE)
    added = re.escape(str([number + 1 for number in range(16)]))
    assert re.search(rf"REST  simple: .*{added}", stack.output)
    assert re.search(rf"gRPC  simple: .*{added}", stack.output)


def test_the_quickstart_tells_the_types_of_files() -> None:
    demo = build_demo(ROOT / ".nereid" / "demo")
    with running_stack(demo, "--quickstart") as stack:
        stack.wait_for(SETTLED_LINE)
    labels = dict(re.findall(r"magika: (\S+) is (\w+)", stack.output))
    assert labels["services/stack/quickstart.py"] == "python"
    assert labels["README.md"] == "markdown"
    assert labels["pyproject.toml"] == "toml"
    assert labels["protos/inference.proto"] == "proto"
    assert labels["scripts/serve"] == "shell"
