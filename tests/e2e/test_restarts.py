"""What clients see when control starts anew."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton

from tests.support.adder import write_adder
from tests.support.adder_traffic import ask, traffic
from tests.support.eventually import eventually
from tests.support.stack import running_stack

pytestmark = pytest.mark.timeout(180)

PATIENCE_S = 30.0


def index_of(client: Any) -> dict[str, tuple[str, str]]:  # noqa: ANN401
    models = client.get_model_repository_index().models
    return {each.name: (each.state, each.reason) for each in models}


def test_control_that_starts_while_the_store_is_away_disturbs_nobody(
    tmp_path: Path,
) -> None:
    write_adder(tmp_path, 1)
    with (
        running_stack(tmp_path, "--model-control-mode=explicit") as stack,
        triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client,
    ):
        # Nothing but the store, the worker and the router know of it.
        client.load_model("adder")
        store, control = stack.process_of("redis"), stack.process_of("control")
        with traffic(stack.grpc) as flowing:
            os.kill(store, signal.SIGSTOP)
            try:
                os.kill(control, signal.SIGKILL)
                stack.wait_for_text("the store is away; starting without it")
                eventually(lambda: stack.process_of("control") != control)
                eventually(lambda: index_of(client) == {"adder": ("READY", "")})
                # A table of the new control is in force: its changes are.
                write_adder(tmp_path, 2, name="other")
                client.load_model("other")
                flowing.wait_for(50)
            finally:
                os.kill(store, signal.SIGCONT)
            assert flowing.errors == []
            assert flowing.flips() == [[1]] * len(flowing.answers)
        assert "model unloaded" not in stack.output


def test_models_of_an_earlier_run_whose_folders_are_gone_are_not_in_the_index(
    tmp_path: Path,
) -> None:
    repository, state = tmp_path / "models", tmp_path / "state"
    for addend, name in enumerate(("kept", "gone"), start=1):
        write_adder(repository, addend, name=name)
    flags = (f"--state-dir={state}",)
    with running_stack(repository, *flags):
        pass
    shutil.rmtree(repository / "gone")
    with (
        running_stack(repository, *flags) as stack,
        triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client,
    ):
        assert index_of(client) == {"kept": ("READY", "")}
        assert ask(client, "kept") == 1
