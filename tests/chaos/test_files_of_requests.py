"""Models made of a request's files outlive control and workers."""

import json
import os
import signal
from pathlib import Path

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.support.adder import adder_bytes, write_adder
from tests.support.adder_traffic import ask
from tests.support.eventually import eventually
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(120)

CONFIG = json.dumps({"backend": "onnxruntime", "max_batch_size": 8})


def kill(stack: Stack, role: str) -> None:
    """Kill a process and return once the stack has started its successor."""
    victim = stack.process_of(role)
    os.kill(victim, signal.SIGKILL)

    def has_successor() -> bool:
        try:
            return stack.process_of(role) != victim
        except LookupError:
            return False

    eventually(has_successor)


def test_a_model_of_a_request_is_loaded_again_from_its_files(tmp_path: Path) -> None:
    write_adder(tmp_path, 1)
    mode = "--model-control-mode=explicit"
    with (
        running_stack(tmp_path, mode) as stack,
        triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client,
    ):
        files = {"file:1/model.onnx": adder_bytes(3)}
        client.load_model("new", config=CONFIG, files=files)

        def states() -> dict[str, str]:
            try:
                models = client.get_model_repository_index().models
            except InferenceServerException:
                return {}
            return {each.name: each.state for each in models}

        kill(stack, "control")
        assert ask(client, "new") == 3
        eventually(lambda: states().get("new") == "READY")
        kill(stack, "worker")
        assert ask(client, "new") == 3
        client.unload_model("new")
        eventually(lambda: states().get("new") == "UNAVAILABLE")
