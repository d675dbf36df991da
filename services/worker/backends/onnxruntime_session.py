"""Opening an ONNX model, and what comes of it."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import onnxruntime as ort
import structlog

from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError
from services.core.model_config import InstanceKind
from services.worker.backend import FoundModel, FoundTensor, ModelSource
from services.worker.backends.onnxruntime_options import SessionSettings
from services.worker.backends.onnxruntime_providers import (
    CPU_PROVIDER,
    Provider,
    idle_providers,
    providers,
)
from services.worker.model_file import model_file

_DEFAULT_FILENAME: Final = "model.onnx"
_ERRORS_ONLY: Final = 3

_TYPES: Final = {
    "tensor(bool)": DataType.BOOL,
    "tensor(uint8)": DataType.UINT8,
    "tensor(uint16)": DataType.UINT16,
    "tensor(uint32)": DataType.UINT32,
    "tensor(uint64)": DataType.UINT64,
    "tensor(int8)": DataType.INT8,
    "tensor(int16)": DataType.INT16,
    "tensor(int32)": DataType.INT32,
    "tensor(int64)": DataType.INT64,
    "tensor(float16)": DataType.FP16,
    "tensor(float)": DataType.FP32,
    "tensor(double)": DataType.FP64,
    "tensor(string)": DataType.BYTES,
    "tensor(bfloat16)": DataType.BF16,
}

_GRAPH_LEVELS: Final = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}

# Its exceptions read: [ONNXRuntimeError] : <number> : <NAME> : <text>
_ERROR: Final = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)

_log = structlog.get_logger(__name__)


def open_session(
    source: ModelSource, settings: SessionSettings, kind: InstanceKind
) -> ort.InferenceSession:
    """Return a session for the CPU or GPU instances of a model.

    Raises:
        ConfigError: what the configuration asks for is not there.
        BackendError: the runtime cannot load the file, or would not use what it
            is to use.
    """
    chosen = providers(source.config, kind, ort.get_available_providers())
    session = _open(source, _session_options(settings), chosen)
    used = session.get_providers()
    missing = [name for name, _ in chosen if name not in used]
    if missing:
        message = (
            f"onnxruntime cannot use {', '.join(missing)} for model"
            f" '{source.config.name}' and would run it on {', '.join(used)}: its"
            " libraries are missing or do not fit the driver"
        )
        raise BackendError(message)
    _report(source, chosen, session)
    return session


def inspect_file(source: ModelSource) -> FoundModel:
    """Return the tensors of a model file.

    The graph is not optimised and nothing is allocated on a GPU.

    Raises:
        BackendError: the runtime cannot read the file.
        ConfigError: a tensor is of a type that the protocol lacks.
    """
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.graph_optimization_level = _GRAPH_LEVELS["disabled"]
    options.intra_op_num_threads = 1
    return found_model(_open(source, options, [(CPU_PROVIDER, {})]))


def found_model(session: ort.InferenceSession) -> FoundModel:
    """Return what a session says of its tensors.

    Raises:
        ConfigError: one is of a type that the protocol lacks.
    """
    return FoundModel(
        inputs=tuple(_tensor(node) for node in session.get_inputs()),
        outputs=tuple(_tensor(node) for node in session.get_outputs()),
    )


def error_text(error: Exception) -> str:
    """Return the runtime's error in Triton's words."""
    match = _ERROR.search(str(error))
    if match is None:
        return f"onnx runtime error 1: {error}"
    return f"onnx runtime error {match[1]}: {match[2]}"


def _open(
    source: ModelSource, options: ort.SessionOptions, chosen: list[Provider]
) -> ort.InferenceSession:
    path = model_file(source, _DEFAULT_FILENAME, inside=_DEFAULT_FILENAME)
    for name in source.config.op_library_filenames:
        _register(source, options, name)
    try:
        # With its fallback, what fails on a GPU is done again on the CPU, silently.
        return ort.InferenceSession(
            str(path), options, providers=chosen, enable_fallback=0
        )
    except Exception as error:
        raise BackendError(error_text(error)) from error


def _register(source: ModelSource, options: ort.SessionOptions, name: str) -> None:
    """Make the operators of a library known to a session.

    A relative name is looked for beside the model's file, then in the model's
    folder, then where the system looks for libraries.
    """
    version = Path(source.directory)
    beside = (folder / name for folder in (version, version.parent))
    found = next((str(path) for path in beside if path.is_file()), name)
    try:
        options.register_custom_ops_library(found)
    except Exception as error:
        message = (
            f"custom operator library '{name}' of model '{source.config.name}':"
            f" {error_text(error)}"
        )
        raise BackendError(message) from error


def _session_options(settings: SessionSettings) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = settings.intra_op_threads
    options.inter_op_num_threads = settings.inter_op_threads
    options.execution_mode = (
        ort.ExecutionMode.ORT_PARALLEL
        if settings.is_parallel
        else ort.ExecutionMode.ORT_SEQUENTIAL
    )
    options.graph_optimization_level = _GRAPH_LEVELS[settings.graph_level]
    options.enable_cpu_mem_arena = settings.has_arena
    options.enable_mem_pattern = settings.has_pattern
    for key, value in settings.entries.items():
        options.add_session_config_entry(key, value)
    return options


def _report(
    source: ModelSource, chosen: Sequence[Provider], session: ort.InferenceSession
) -> None:
    """Write down who executes the model, and warn where that is not who should."""
    nodes: Counter[str] = Counter()
    for part in session.get_provider_graph_assignment_info():
        nodes[part.ep_name] += len(part.get_nodes())
    model = {"model": source.config.name, "version": source.version}
    shares = ", ".join(f"{name}: {count}" for name, count in nodes.items())
    _log.info("nodes of an onnx model by provider", **model, nodes=shares)
    for name in idle_providers(chosen, nodes):
        _log.warning("an execution provider got no node", **model, provider=name)


def _tensor(node: ort.NodeArg) -> FoundTensor:
    datatype = _TYPES.get(node.type)
    if datatype is None:
        message = f"tensor '{node.name}' is a {node.type}, which the protocol lacks"
        raise ConfigError(message)
    shape = tuple(
        dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape
    )
    return FoundTensor(name=node.name, datatype=datatype, shape=shape)
