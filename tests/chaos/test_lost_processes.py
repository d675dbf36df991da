"""Processes killed and stopped under load: it costs time, not answers."""

import contextlib
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.chaos.load import ask, load, wait_until
from tests.support.stack import Stack, build_demo, running_stack

pytestmark = pytest.mark.timeout(120)

# How long a stopped worker may go unnoticed, and requests wait for another.
NOTICED_S = 12.0
AWAY_S = 5.0
# How long a control that was started anew waits for its workers, and a bit.
RECOVERY_S = 5.5
NO_WORKER_S = 10.0
SLACK_S = 4.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("demo") / "models"
    with running_stack(build_demo(folder, "--only", "simple")) as running:
        yield running


def state_of(process: int) -> str:
    status = Path(f"/proc/{process}/stat").read_text()
    return status.rpartition(")")[2].split()[0]


@contextlib.contextmanager
def stopped(process: int) -> Iterator[None]:
    """Stop a process for as long as the block runs."""
    os.kill(process, signal.SIGSTOP)
    try:
        # On a busy machine its threads run on until one has taken the signal.
        wait_until(lambda: state_of(process) == "T", within_s=30)
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def is_ready(stack: Stack) -> bool:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        return bool(client.is_server_ready())


def is_managed(stack: Stack) -> bool:
    """Tell whether control answers, through the router."""
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        try:
            client.get_model_repository_index(client_timeout=30)
        except InferenceServerException:
            return False
        return True


def ask_by_rest(stack: Stack) -> None:
    tensors = [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "data": [0] * 16}
        for name in ("INPUT0", "INPUT1")
    ]
    url = f"http://127.0.0.1:{stack.http}/v2/models/simple/infer"
    body = json.dumps({"inputs": tensors}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body)) as response:
        assert response.status == 200


def kill(stack: Stack, role: str) -> int:
    process = stack.process_of(role)
    os.kill(process, signal.SIGKILL)
    return process


def is_replaced(stack: Stack, role: str, process: int) -> bool:
    with contextlib.suppress(LookupError):
        return stack.process_of(role) != process
    return False


@pytest.mark.parametrize("role", ["worker", "control", "redis"])
def test_a_killed_process_costs_no_request(stack: Stack, role: str) -> None:
    with load(stack.grpc) as running:
        process = kill(stack, role)
        running.wait_for_more(100, within_s=30)
        wait_until(lambda: is_replaced(stack, role, process), within_s=30)
        running.wait_for_more(100, within_s=30)
    assert running.errors == [], stack.output
    wait_until(lambda: is_ready(stack) and is_managed(stack), within_s=30)


@pytest.mark.parametrize("role", ["control", "redis"])
def test_inference_goes_on_while_nobody_manages_it(stack: Stack, role: str) -> None:
    with load(stack.grpc) as running:
        with stopped(stack.process_of(role)):
            threading.Event().wait(AWAY_S)
            running.wait_for_more(100, within_s=30)
        running.wait_for_more(100, within_s=30)
    assert running.errors == [], stack.output
    assert running.slowest_s < AWAY_S
    wait_until(lambda: is_managed(stack), within_s=30)


def times_listening(stack: Stack) -> int:
    """Return how often control began to listen; not what is quoted of its words."""
    lines = stack.output.splitlines()
    return sum(
        line.startswith("I") and '"control is listening"' in line for line in lines
    )


def test_a_control_that_is_stopped_while_it_recovers_loses_no_worker(
    stack: Stack,
) -> None:
    times = times_listening(stack)
    with load(stack.grpc) as running:
        kill(stack, "control")
        wait_until(lambda: times_listening(stack) > times, within_s=30)
        with stopped(stack.process_of("control")):
            threading.Event().wait(RECOVERY_S)
        # A control that thinks itself alone tells the router so now.
        wait_until(lambda: is_managed(stack), within_s=30)
        running.wait_for_more(100, within_s=30)
    assert running.errors == [], stack.output


def test_a_stopped_worker_is_noticed_and_comes_back(stack: Stack) -> None:
    with load(stack.grpc) as running:
        with stopped(stack.process_of("worker")):
            wait_until(lambda: not is_ready(stack), within_s=NOTICED_S + SLACK_S)
        running.wait_for_more(100, within_s=30)
    assert running.errors == [], stack.output
    wait_until(lambda: is_ready(stack), within_s=30)


def test_without_a_worker_every_request_is_refused_in_time(stack: Stack) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        with stopped(stack.process_of("worker")):
            began = time.monotonic()
            error = ask(client)
            assert time.monotonic() - began < NOTICED_S + NO_WORKER_S + SLACK_S
            assert error.startswith("[StatusCode.UNAVAILABLE] no worker serves model")
            began = time.monotonic()
            assert ask(client) == error
            assert time.monotonic() - began < 1
            assert not is_ready(stack)
            with pytest.raises(urllib.error.HTTPError) as caught:
                ask_by_rest(stack)
            assert caught.value.code == 503
            assert caught.value.headers["Retry-After"] == "1"
        wait_until(lambda: ask(client) == "", within_s=30)
