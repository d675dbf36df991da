"""ONNX models, run by ONNX Runtime."""

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError
from services.core.model_config import InstanceKind, ModelConfig
from services.worker.backend import (
    FoundModel,
    FoundTensor,
    InstancePlace,
    ModelSource,
    Runtime,
    Tensors,
)
from services.worker.backends.onnxruntime_options import (
    SessionSettings,
    providers,
    session_settings,
)
from services.worker.device import DeviceKind
from services.worker.model_check import check_model

_DEFAULT_FILENAME: Final = "model.onnx"
_BFLOAT16: Final = 16  # onnx.TensorProto.BFLOAT16
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


def runtime() -> Runtime:
    """Return the way to load ONNX models."""
    # The library reports its use to its vendor unless told not to.
    ort.disable_telemetry_events()
    if "CUDAExecutionProvider" in ort.get_available_providers():
        # CUDA and cuDNN come as Python packages, where no linker looks for them.
        ort.preload_dlls()
    return OnnxRuntime()


class OnnxRuntime:
    """Loads ONNX models.

    The instances of a version share one session for each kind of device: a
    session's ``run`` may be called by several threads, its weights are in memory
    once, and its threads are not multiplied by the instances. Measured on two
    cores with two instances of six MatMuls (FP32 [8,512] x [512,512]): 5,500
    runs/s sharing against 4,600 with sessions of their own, 7,700 either way
    with intra_op_thread_count 1.
    """

    def load(
        self, source: ModelSource, places: Sequence[InstancePlace]
    ) -> tuple["OnnxModel", ...]:
        """Load one model version; see Runtime."""
        config = source.config
        settings = session_settings(config)
        sessions: dict[InstanceKind, ort.InferenceSession] = {}
        models = []
        for place in places:
            kind = _kind(source, place)
            session = sessions.get(kind)
            if session is None:
                session = sessions[kind] = _session(source, settings, kind)
                check_model(config, _found(session))
            models.append(OnnxModel(session, config, settings))
        return tuple(models)

    def inspect(self, source: ModelSource) -> FoundModel:
        """Read the model's tensors; see Runtime.

        The graph is not optimised and nothing is allocated on a GPU.
        """
        options = ort.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        options.graph_optimization_level = _GRAPH_LEVELS["disabled"]
        options.intra_op_num_threads = 1
        return _found(_open(source, options, [("CPUExecutionProvider", {})]))


class OnnxModel:
    """One instance of an ONNX model; see Backend.

    Inputs are handed over without a copy. Binding buffers once would take 2.9 us
    a run in place of 6.4 (`simple`, 7 rows), but binding them anew takes 17: it
    pays only for a fixed number of rows.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        config: ModelConfig,
        settings: SessionSettings,
    ) -> None:
        """Share ``session`` with the model's other instances."""
        self.session = session
        self._options = _run_options(settings)
        self._texts = [t.name for t in config.inputs if t.datatype is DataType.BYTES]
        self._bf16_inputs = _names(config.inputs, DataType.BF16)
        self._bf16_outputs = _names(config.outputs, DataType.BF16)
        self._has_bf16 = bool(self._bf16_inputs or self._bf16_outputs)

    def execute(self, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
        """Run one batch; see Backend."""
        if self._texts:
            inputs = {**inputs, **self._decoded(inputs)}
        try:
            if self._has_bf16:
                return self._execute_bf16(inputs, output_names)
            arrays = self.session.run(output_names, inputs, self._options)
        except BackendError:
            raise
        except Exception as error:
            raise BackendError(_text(error)) from error
        return dict(zip(output_names, arrays, strict=True))

    def unload(self) -> None:
        """Let go of the session; it ends with its last instance."""
        del self.session

    def _decoded(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """Return the BYTES inputs as text, the only kind of string ONNX has."""
        decoded = {}
        for name in self._texts:
            array = inputs.get(name)
            if array is None:
                continue
            text = np.empty(array.size, object)
            try:
                text[:] = [element.decode() for element in array.reshape(-1)]
            except UnicodeDecodeError as error:
                message = (
                    f"input '{name}' holds an element that is not UTF-8, which ONNX"
                    f" Runtime cannot take: {error}"
                )
                raise BackendError(message) from error
            decoded[name] = text.reshape(array.shape)
        return decoded

    def _execute_bf16(self, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
        """Run with values that numpy has no datatype for."""
        values = {
            name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)
            if name in self._bf16_inputs
            else ort.OrtValue.ortvalue_from_numpy(array)
            for name, array in inputs.items()
        }
        found = self.session.run_with_ort_values(output_names, values, self._options)
        return {
            name: _bit_pattern(value) if name in self._bf16_outputs else value.numpy()
            for name, value in zip(output_names, found, strict=True)
        }


def _session(
    source: ModelSource, settings: SessionSettings, kind: InstanceKind
) -> ort.InferenceSession:
    chosen = providers(source.config, kind, ort.get_available_providers())
    session = _open(source, _session_options(settings), chosen)
    # Without this a failing run is repeated on the CPU, silently and for good.
    session.disable_fallback()
    missing = [name for name, _ in chosen if name not in session.get_providers()]
    if missing:
        message = (
            f"onnxruntime cannot use {', '.join(missing)} for model"
            f" '{source.config.name}' and would run it on"
            f" {', '.join(session.get_providers())}: its libraries are missing or do"
            " not fit the driver"
        )
        raise BackendError(message)
    return session


def _open(
    source: ModelSource, options: ort.SessionOptions, chosen: list[Any]
) -> ort.InferenceSession:
    filename = source.config.default_model_filename or _DEFAULT_FILENAME
    path = Path(source.directory) / filename
    if path.is_dir():
        path /= _DEFAULT_FILENAME
    if not path.is_file():
        message = f"failed to stat file {path}"
        raise BackendError(message)
    try:
        return ort.InferenceSession(str(path), options, providers=chosen)
    except Exception as error:
        raise BackendError(_text(error)) from error


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


def _run_options(settings: SessionSettings) -> ort.RunOptions | None:
    if not settings.run_entries:
        return None
    options = ort.RunOptions()
    for key, value in settings.run_entries.items():
        options.add_run_config_entry(key, value)
    return options


def _kind(source: ModelSource, place: InstancePlace) -> InstanceKind:
    """Return CPU or GPU: where an instance is to run."""
    groups = source.config.instance_groups
    kind = groups[place.group].kind if place.group < len(groups) else InstanceKind.AUTO
    has_gpu = source.device.kind is DeviceKind.GPU
    if kind is InstanceKind.GPU and not has_gpu:
        message = (
            f"instance {place.name} of model '{source.config.name}' has kind KIND_GPU"
            f" but this worker serves {source.device.label}"
        )
        raise ConfigError(message)
    if kind is InstanceKind.CPU or not has_gpu:
        return InstanceKind.CPU
    return InstanceKind.GPU


def _found(session: ort.InferenceSession) -> FoundModel:
    return FoundModel(
        inputs=tuple(_tensor(node) for node in session.get_inputs()),
        outputs=tuple(_tensor(node) for node in session.get_outputs()),
    )


def _tensor(node: ort.NodeArg) -> FoundTensor:
    datatype = _TYPES.get(node.type)
    if datatype is None:
        message = f"tensor '{node.name}' is a {node.type}, which the protocol lacks"
        raise ConfigError(message)
    shape = tuple(
        dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape
    )
    return FoundTensor(name=node.name, datatype=datatype, shape=shape)


def _names(tensors: Sequence[Any], datatype: DataType) -> frozenset[str]:
    return frozenset(tensor.name for tensor in tensors if tensor.datatype is datatype)


def _bit_pattern(value: ort.OrtValue) -> NDArray[np.uint16]:
    """Copy a BF16 value out of the runtime's memory."""
    if value.device_name().lower() != "cpu":
        message = f"a BF16 output is on {value.device_name()}, not on the CPU"
        raise BackendError(message)
    shape = value.shape()
    size = value.tensor_size_in_bytes()
    content = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.ndarray(shape, np.uint16, content)


def _text(error: Exception) -> str:
    """Return the runtime's error in Triton's words."""
    match = _ERROR.search(str(error))
    if match is None:
        return f"onnx runtime error 1: {error}"
    return f"onnx runtime error {match[1]}: {match[2]}"
