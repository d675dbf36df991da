"""The logging extension through NVIDIA's clients, on both transports."""

import contextlib
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.chaos.load import wait_until
from tests.support.stack import Stack, build_demo, running_stack

pytestmark = pytest.mark.timeout(120)

HTTP, GRPC = tritonclient.http, tritonclient.grpc
DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
ISO_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \d+ [IVWE] ")


def client_of(stack: Stack, module: Any) -> Any:  # noqa: ANN401 - untyped clients
    port = stack.http if module is HTTP else stack.grpc
    return module.InferenceServerClient(f"127.0.0.1:{port}")


def plain(settings: Any) -> dict[str, object]:  # noqa: ANN401
    """Return a client's answer as REST has it."""
    if isinstance(settings, dict):
        return settings
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in settings.settings.items()
    }


@pytest.mark.parametrize("module", [HTTP, GRPC])
def test_settings_change_one_by_one_and_come_back(
    stack: Stack,
    module: Any,  # noqa: ANN401
) -> None:
    client = client_of(stack, module)
    assert plain(client.get_log_settings()) == DEFAULTS
    changes = {"log_verbose_level": 2, "log_warning": False}
    try:
        assert plain(client.update_log_settings(changes)) == DEFAULTS | changes
        other = client_of(stack, GRPC if module is HTTP else HTTP)
        assert plain(other.get_log_settings()) == DEFAULTS | changes
    finally:
        client.update_log_settings({"log_verbose_level": 0, "log_warning": True})
    assert plain(client.get_log_settings()) == DEFAULTS


@pytest.mark.parametrize("module", [HTTP, GRPC])
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"log_file": "x"}, "log file location can not be updated"),
        ({"log_format": "nope"}, "got: nope"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    stack: Stack,
    module: Any,  # noqa: ANN401
    changes: dict[str, object],
    text: str,
) -> None:
    client = client_of(stack, module)
    with pytest.raises(InferenceServerException, match=text):
        client.update_log_settings({"log_info": False, **changes})
    assert plain(client.get_log_settings()) == DEFAULTS


def test_control_router_and_worker_write_in_the_new_format(tmp_path: Path) -> None:
    build_demo(tmp_path / "models", "--only", "simple")
    with running_stack(tmp_path / "models") as stack:
        client = client_of(stack, HTTP)
        client.update_log_settings({"log_format": "ISO8601", "log_verbose_level": 1})
        # A worker that comes back gives all three something to say.
        os.kill(stack.process_of("worker"), signal.SIGKILL)

        roles = ("control/", "router/", "worker/")

        def have_all_written() -> bool:
            lines = "".join(filter(ISO_LINE.match, stack.output.splitlines()))
            return all(role in lines for role in roles)

        with stack._news:
            assert stack._news.wait_for(have_all_written, 30), stack.output


def test_serve_itself_writes_as_clients_have_changed_it(tmp_path: Path) -> None:
    build_demo(tmp_path / "models", "--only", "simple")
    with running_stack(tmp_path / "models") as stack:
        client = client_of(stack, HTTP)
        client.update_log_settings({"log_format": "ISO8601"})
        ended = "a process ended and is started again"

        def has_written_so() -> bool:
            # It looks once a second; until it has, its lines have the old form.
            own = [line for line in stack.output.splitlines() if ended in line]
            if any(map(ISO_LINE.match, own)):
                return True
            with contextlib.suppress(LookupError, ProcessLookupError):
                os.kill(stack.process_of("worker"), signal.SIGKILL)
            return False

        wait_until(has_written_so, within_s=30)


MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        out = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X")
            pb_utils.Logger.log_verbose(f"saw {x.as_numpy()[0]}")
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy())]))
        return out
"""
CONFIG = """
backend: "python" max_batch_size: 0
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


def test_a_python_models_log_follows_the_settings(tmp_path: Path) -> None:
    (tmp_path / "logs" / "1").mkdir(parents=True)
    (tmp_path / "logs" / "1" / "model.py").write_text(MODEL)
    (tmp_path / "logs" / "config.pbtxt").write_text(CONFIG)
    with running_stack(tmp_path) as stack:
        client = client_of(stack, GRPC)

        def infer(value: int) -> None:
            tensor = GRPC.InferInput("X", [1], "INT32")
            tensor.set_data_from_numpy(np.array([value], np.int32))
            client.infer("logs", [tensor])

        infer(111)
        client.update_log_settings({"log_verbose_level": 1})
        # The worker is told after the client is answered: soon, not before.
        numbers = iter(range(222, 322))

        def is_verbose() -> bool:
            infer(next(numbers))
            return '"saw 2' in stack.output

        wait_until(is_verbose, within_s=20)
        assert "saw 111" not in stack.output
