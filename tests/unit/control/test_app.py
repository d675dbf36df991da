"""The process ``nereid control``, from outside."""

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from protos import inference_pb2, inference_pb2_grpc
from services.control.command_line import max_batch_sizes, parse
from services.core.health_client import SERVING, health_of

pytestmark = pytest.mark.timeout(60)


@contextlib.contextmanager
def control(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with tempfile.TemporaryDirectory() as directory:
        target = f"unix:{directory}/control.sock"
        main = "import sys; from services.control.app import main; sys.exit(main("
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"{main}sys.argv[1:]))",
                *("--listen", target, "--redis-url", ""),
                *flags,
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process, target
        finally:
            process.kill()
            process.communicate()


def wait_until_serving(process: subprocess.Popen[str], target: str) -> None:
    while process.poll() is None and health_of(target, timeout_s=0.5) != SERVING:
        pass
    assert process.poll() is None


def wait_until_unavailable(target: str, model: str) -> None:
    with grpc.insecure_channel(target) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = inference_pb2.RepositoryIndexRequest()
        while True:
            for each in stub.RepositoryIndex(request, timeout=5).models:
                if (each.name, each.state) == (model, "UNAVAILABLE"):
                    return


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_is_healthy_without_a_worker_and_ends_when_told(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").touch()
    with control("--model-repository", str(tmp_path)) as (process, target):
        wait_until_serving(process, target)
        process.send_signal(number)
        assert process.wait(10) == 0


def test_it_ends_with_every_reason_if_models_fail_at_the_start(tmp_path: Path) -> None:
    for name in ("bad", "worse"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text("max_batch_siz: 1")
    with control("--model-repository", str(tmp_path)) as (process, _):
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 1
    assert "error: creating server: Internal - failed to load all models" in errors
    assert "failed to load 'bad': " in errors
    assert "failed to load 'worse': " in errors


def test_it_goes_on_with_failed_models_if_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    repository = ("--model-repository", str(tmp_path))
    with control(*repository, "--exit-on-error=false") as (process, target):
        wait_until_serving(process, target)
        wait_until_unavailable(target, "bad")
        process.terminate()
        assert process.wait(10) == 0


def test_a_repository_that_is_not_there_is_named(tmp_path: Path) -> None:
    with control("--model-repository", str(tmp_path / "no")) as (process, _):
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 1
    assert f"failed to open model repository {tmp_path}/no: No such file" in errors


def test_an_address_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    repository = ("--model-repository", str(tmp_path))
    with control(*repository, "--listen", "unix:/no/such/folder") as (process, _):
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 1
    assert "control cannot listen on unix:/no/such/folder" in errors


def test_every_flag_of_the_contract_is_taken() -> None:
    flags = """
        --model-repository a --model-repository b --listen unix:x --redis-url r
        --model-control-mode explicit --load-model m --load-model n
        --exit-on-error false --strict-readiness=0 --disable-auto-complete-config
        --backend-config onnxruntime,default-max-batch-size=8
        --repository-poll-secs 3 --log-verbose 1
    """
    settings = parse(flags.split())
    assert settings.redis_url == "r"
    assert not settings.exit_on_error
    assert not settings.strict_readiness
    assert settings.catalog.roots == ("a", "b")
    assert settings.catalog.mode.value == "explicit"
    assert settings.catalog.start_up_models == ("m", "n")
    assert not settings.catalog.completion.auto_complete
    assert settings.catalog.completion.max_batch_size("onnxruntime") == 8
    assert settings.catalog.completion.max_batch_size("tensorrt") == 4


def test_flags_that_are_not_given_are_tritons_defaults() -> None:
    settings = parse(["--model-repository", "a", "--listen", "unix:x"])
    assert settings.exit_on_error
    assert settings.strict_readiness
    assert settings.catalog.mode.value == "none"
    assert settings.catalog.completion.auto_complete


def test_a_batch_size_can_be_meant_for_every_backend() -> None:
    sizes = [
        "default-max-batch-size=2",
        "onnxruntime,a=b",
        "x,default-max-batch-size=3",
    ]
    assert max_batch_sizes(sizes) == {"": 2, "x": 3}


@pytest.mark.parametrize("setting", ["nonsense", "b,default-max-batch-size=many"])
def test_a_backend_setting_that_makes_no_sense_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=setting.rpartition("=")[2]):
        max_batch_sizes([setting])
