"""Python models that say themselves whether they are ready, as clients see them."""

import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.chaos.load import wait_until
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(180)

# Is ready unless a file says otherwise.
MODEL = """
import pathlib
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.unwell = pathlib.Path(args["model_repository"]) / "unwell"

    {head} is_ready(self):
        return not self.unwell.exists()

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor(
            "Y", r.inputs()[0].as_numpy())]) for r in requests]
"""
CONFIG = """
backend: "python" max_batch_size: 8
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 2 } ]
"""
NAMES = {"plain": "def", "coroutine": "async def"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, head in NAMES.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(MODEL.replace("{head}", head))
        (folder / name / "config.pbtxt").write_text(CONFIG)
    return folder


@pytest.fixture(scope="module")
def stack(repository: Path) -> Iterator[Stack]:
    with running_stack(repository) as running:
        yield running


@pytest.fixture
def client(stack: Stack) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as connected:
        yield connected


def status(stack: Stack, path: str) -> int:
    try:
        url = f"http://127.0.0.1:{stack.http}/v2/{path}"
        with urllib.request.urlopen(url) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_says_it_is_not_ready_still_answers(
    stack: Stack, repository: Path, client: triton.InferenceServerClient, name: str
) -> None:
    (other,) = NAMES.keys() - {name}
    assert client.is_model_ready(name)
    assert status(stack, f"models/{name}/versions/1/ready") == 200
    (repository / name / "unwell").touch()
    assert not client.is_model_ready(name, "1")
    assert status(stack, f"models/{name}/ready") == 400
    assert client.is_model_ready(other)
    row = triton.InferInput("X", [1, 1], "INT32")
    row.set_data_from_numpy(np.array([[7]], np.int32))
    assert client.infer(name, [row]).as_numpy("Y") == 7
    (repository / name / "unwell").unlink()
    assert client.is_model_ready(name)


def test_a_server_is_ready_if_all_its_models_are(
    stack: Stack, repository: Path, client: triton.InferenceServerClient
) -> None:
    assert client.is_server_ready()
    (repository / "plain" / "unwell").touch()
    assert not client.is_server_ready()
    assert client.is_server_live()
    assert status(stack, "health/ready") == 400
    assert status(stack, "health/live") == 200
    (repository / "plain" / "unwell").unlink()
    assert client.is_server_ready()
    assert status(stack, "health/ready") == 200


def test_a_control_that_was_killed_has_models_asked_again(
    stack: Stack, repository: Path, client: triton.InferenceServerClient
) -> None:
    (repository / "plain" / "unwell").touch()
    os.kill(stack.process_of("control"), signal.SIGKILL)
    # While it is away the model is believed to be ready.
    wait_until(lambda: not client.is_model_ready("plain"), within_s=30)
    (repository / "plain" / "unwell").unlink()
    wait_until(lambda: client.is_model_ready("plain"), within_s=30)
