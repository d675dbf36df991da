"""The runtimes that models can be loaded with, imported when first needed."""

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from services.core.errors import BackendError, ConfigError
from services.core.model_config import ModelConfig
from services.worker.backend import Runtime
from services.worker.backends.installed import installed_backends, installed_runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendEntry:
    """Where a backend is implemented.

    Attributes:
        module: Ours; it has a function ``runtime() -> Runtime``.
        requires: The packages that must be importable.
        extra: Of our distribution, that installs them.
        needs_gpu: A worker of a CPU does not offer it.
    """

    module: str
    requires: tuple[str, ...]
    extra: str
    needs_gpu: bool = False


BACKENDS: Final[Mapping[str, BackendEntry]] = {
    "onnxruntime": BackendEntry(
        module="services.worker.backends.onnxruntime",
        requires=("onnxruntime",),
        extra="cpu (or gpu)",
    ),
    "python": BackendEntry(
        module="services.worker.backends.python", requires=(), extra=""
    ),
    "tensorrt": BackendEntry(
        module="services.worker.backends.tensorrt",
        requires=("tensorrt",),
        extra="tensorrt",
        needs_gpu=True,
    ),
    "pytorch": BackendEntry(
        module="services.worker.backends.pytorch", requires=("torch",), extra="torch"
    ),
    **{
        name: BackendEntry(
            module=f"services.worker.qa_backends.{name}", requires=(), extra=""
        )
        for name in ("identity", "repeat", "square", "sequence", "dyna_sequence")
    },
}

# Triton's older way to say which backend.
PLATFORMS: Final[Mapping[str, str]] = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "torch_aoti": "pytorch",
    "tensorrt_plan": "tensorrt",
}


def backend_name(config: ModelConfig) -> str:
    """Return the backend that ``config`` asks for; "" if it asks for none."""
    return config.backend or PLATFORMS.get(config.platform, "")


def available_backends(*, has_gpu: bool) -> tuple[str, ...]:
    """Return the backends whose packages are installed, without importing them.

    A package of somebody else cannot take the name of one of ours.
    """
    ours = (
        name
        for name, entry in BACKENDS.items()
        if not _missing(entry) and (has_gpu or not entry.needs_gpu)
    )
    return (*ours, *(name for name in installed_backends() if name not in BACKENDS))


def find_runtime(config: ModelConfig) -> Runtime:
    """Return the runtime for a model.

    Raises:
        ConfigError: there is no such backend, or what it needs is not
            installed.
        BackendError: what it needs is installed but cannot be imported.
    """
    name = backend_name(config)
    entry = BACKENDS.get(name)
    if entry is None:
        runtime = installed_runtime(name) if name else None
        if runtime is not None:
            return runtime
        shown = name or config.platform
        message = (
            f"unable to find backend library for backend '{shown}', try specifying"
            " runtime on the model configuration."
        )
        raise ConfigError(message)
    missing = _missing(entry)
    if missing:
        message = (
            f"backend '{name}' of model '{config.name}' needs {', '.join(missing)},"
            f" which is not installed on this worker: install nereid with the extra"
            f" {entry.extra}"
        )
        raise ConfigError(message)
    try:
        module = importlib.import_module(entry.module)
    except ImportError as error:
        message = f"backend '{name}' of model '{config.name}' cannot start: {error}"
        raise BackendError(message) from error
    return cast("Runtime", module.runtime())


def _missing(entry: BackendEntry) -> list[str]:
    return [name for name in entry.requires if importlib.util.find_spec(name) is None]
