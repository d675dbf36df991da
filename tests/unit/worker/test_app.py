"""The worker's process: its flags, its environment, its end."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from services.worker.app import main, parse_arguments

START_S = 30


@pytest.fixture
def _logging_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_flags_have_defaults() -> None:
    settings = parse_arguments(["--control", "unix:/x"])
    assert (settings.control, settings.device) == ("unix:/x", "cpu")
    assert settings.worker_id is None


@pytest.mark.usefixtures("_logging_as_before")
def test_a_device_that_is_none_is_told_to_the_user(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--control", "unix:/x", "--device", "tpu"]) == 2
    assert "unknown device 'tpu'" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_that_found_no_control(
    tmp_path: Path, number: signal.Signals
) -> None:
    program = (
        "import sys; from services.worker.app import main; sys.exit(main(sys.argv[1:]))"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", program, "--control", f"unix:{tmp_path}/none.sock"],
        stderr=subprocess.PIPE,
        text=True,
    )
    with worker:
        assert worker.stderr is not None
        for line in worker.stderr:
            if "worker is up" in line:
                break
        worker.send_signal(number)
        rest = worker.stderr.read()
        assert worker.wait(START_S) == 0
        assert "worker is stopping" in rest
