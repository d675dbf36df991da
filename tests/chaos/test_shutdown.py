"""SIGTERM: nobody new, but whoever was here is answered, within a bound."""

import http.client
import json
import queue
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.support.stack import Stack, started_stack

pytestmark = pytest.mark.timeout(120)

EXECUTION_S = 3.0
EXIT_TIMEOUT_S = 15
SLACK_S = 10.0
MODEL = f"""
import threading
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        threading.Event().wait({EXECUTION_S})
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return responses
"""
CONFIG = """
backend: "python" max_batch_size: 1
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    version = tmp_path / "slow" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (tmp_path / "slow" / "config.pbtxt").write_text(CONFIG)
    flag = f"--exit-timeout-secs={EXIT_TIMEOUT_S}"
    with started_stack(tmp_path, flag) as running:
        running.wait_ready()
        yield running


def tensor(number: int) -> triton.InferInput:
    made = triton.InferInput("X", [1, 1], "INT32")
    made.set_data_from_numpy(np.array([[number]], np.int32))
    return made


def wait_for(condition: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline


def is_ready(client: triton.InferenceServerClient) -> bool:
    try:
        return bool(client.is_server_ready(client_timeout=30))
    except InferenceServerException:
        return False


class Upload:
    """A REST request whose body is on its way."""

    def __init__(self, stack: Stack, number: int) -> None:
        """Send all but the last byte."""
        x = {"name": "X", "datatype": "INT32", "shape": [1, 1], "data": [number]}
        self._body = json.dumps({"inputs": [x]}).encode()
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", stack.http, timeout=30
        )
        self._connection.putrequest("POST", "/v2/models/slow/infer")
        self._connection.putheader("Content-Length", str(len(self._body)))
        self._connection.endheaders(self._body[:-1])

    def complete(self) -> tuple[int, Any]:
        """Send the rest; return the status and the document."""
        self._connection.send(self._body[-1:])
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())


def test_who_was_here_is_answered_and_nobody_new_is_taken(stack: Stack) -> None:
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()

    def answered(result: Any, error: Any) -> None:  # noqa: ANN401 - tritonclient is untyped
        answers.put((result, error))

    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        for number in range(2):
            client.async_infer("slow", [tensor(number)], answered)
        upload = Upload(stack, 7)
        wait_for(lambda: waiting(stack) == 1, within_s=EXECUTION_S)
        began = time.monotonic()
        stack.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not is_ready(client), within_s=EXECUTION_S)
        with pytest.raises(InferenceServerException) as caught:
            client.infer("slow", [tensor(9)], client_timeout=30)
        assert "StatusCode.UNAVAILABLE" in str(caught.value), stack.output
        status, document = upload.complete()
        assert (status, document.get("outputs", [{}])[0].get("data")) == (200, [7]), (
            document,
            stack.output,
        )
        for _ in range(2):
            result, error = answers.get(timeout=30)
            assert error is None, (str(error), stack.output)
            assert result.as_numpy("Y").shape == (1, 1)
    assert stack.wait_ended() == 0
    assert time.monotonic() - began < EXIT_TIMEOUT_S + SLACK_S


def waiting(stack: Stack) -> int:
    """Return how many requests wait in the queue; one more is being executed."""
    url = f"http://127.0.0.1:{stack.metrics}/metrics"
    with urllib.request.urlopen(url) as page:
        lines = page.read().decode().splitlines()
    name = "nv_inference_pending_request_count"
    return sum(int(float(x.rpartition(" ")[2])) for x in lines if x.startswith(name))
