"""Which runtimes there are."""

import subprocess
import sys

import pytest

from services.core.errors import BackendError, ConfigError
from services.core.model_config import ModelConfig
from services.worker import backends
from services.worker.backends import BackendEntry


def model(backend: str = "", platform: str = "") -> ModelConfig:
    return ModelConfig(name="m", backend=backend, platform=platform)


@pytest.mark.parametrize(
    "config",
    [model("onnxruntime"), model(platform="onnxruntime_onnx")],
    ids=["backend", "platform"],
)
def test_a_runtime_is_found_by_either_of_its_names(config: ModelConfig) -> None:
    assert type(backends.find_runtime(config)).__name__ == "OnnxRuntime"


@pytest.mark.parametrize("config", [model("nosuch"), model(platform="nosuch")])
def test_an_unknown_backend_is_told_in_tritons_words(config: ModelConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        backends.find_runtime(config)
    assert str(caught.value) == (
        "unable to find backend library for backend 'nosuch', try specifying runtime"
        " on the model configuration."
    )


def test_a_backend_that_is_not_installed_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = BackendEntry(module="no.such", requires=("no_such_package",), extra="it")
    monkeypatch.setattr(backends, "BACKENDS", {"absent": entry})
    with pytest.raises(ConfigError, match=r"needs no_such_package, .* the extra it"):
        backends.find_runtime(model("absent"))
    assert backends.available_backends(has_gpu=False) == ()


def test_a_backend_that_cannot_be_imported_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = BackendEntry(module="no_such_module", requires=(), extra="it")
    monkeypatch.setattr(backends, "BACKENDS", {"broken": entry})
    with pytest.raises(BackendError, match="cannot start: No module named"):
        backends.find_runtime(model("broken"))


def test_no_runtime_is_imported_before_a_model_needs_it() -> None:
    program = (
        "import sys, services.worker.app, services.worker.worker;"
        "from services.worker import backends;"
        "assert 'onnxruntime' in backends.available_backends(has_gpu=False);"
        "sys.exit('onnxruntime' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], check=False)
    assert result.returncode == 0
