"""ONNX models, run by ONNX Runtime."""

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import onnxruntime as ort
import structlog
from numpy.typing import NDArray

from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError
from services.core.model_config import InstanceKind, ModelConfig
from services.worker.backend import (
    FoundModel,
    InstancePlace,
    ModelSource,
    Runtime,
    Tensors,
)
from services.worker.backends.onnxruntime_binding import (
    GPU_WORTH_BYTES,
    WORTH_BYTES,
    OutputBinding,
    UnforeseenShapeError,
    is_worth_it,
    output_plans,
)
from services.worker.backends.onnxruntime_options import session_settings
from services.worker.backends.onnxruntime_providers import unused_accelerators
from services.worker.backends.onnxruntime_session import (
    error_text,
    found_model,
    inspect_file,
    open_session,
)
from services.worker.device import DeviceKind
from services.worker.gather import Allocate
from services.worker.host_memory import output_memory
from services.worker.model_check import check_model
from services.worker.signature import input_specs, state_output_specs, state_specs

_BFLOAT16: Final = 16  # onnx.TensorProto.BFLOAT16

_log = structlog.get_logger(__name__)


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
                session = sessions[kind] = open_session(source, settings, kind)
                check_model(config, found_model(session))
            entries = settings.run_entries(kind)
            memory = output_memory(source, place)
            models.append(OnnxModel(session, source, kind, entries, memory))
        unused = unused_accelerators(config, sessions)
        if unused:
            _log.warning(
                "accelerators are for another kind of instance and not used",
                model=config.name,
                accelerators=", ".join(unused),
            )
        return tuple(models)

    def inspect(self, source: ModelSource) -> FoundModel:
        """Read the model's tensors; see Runtime."""
        return inspect_file(source)


class OnnxModel:
    """One instance of an ONNX model; see Backend.

    Inputs are handed over without a copy. Large outputs go to memory that is kept
    (see OutputBinding); small ones are made anew by each run, which is as quick.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        source: ModelSource,
        kind: InstanceKind,
        run_entries: dict[str, str],
        allocate: Allocate,
    ) -> None:
        """Share ``session`` with the model's other instances of the same kind."""
        config = source.config
        self.session = session
        self._model = config.name
        self._options = _run_options(run_entries)
        told = (*input_specs(config), *state_specs(config))
        self._texts = [t.name for t in told if t.datatype is DataType.BYTES]
        self._bf16_inputs = _names(told, DataType.BF16)
        given = (*config.outputs, *state_output_specs(config))
        self._bf16_outputs = _names(given, DataType.BF16)
        self._has_bf16 = bool(self._bf16_inputs or self._bf16_outputs)
        self._binding = self._make_binding(config, kind, allocate)

    def execute(self, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
        """Run one batch; see Backend."""
        if self._texts:
            inputs = {**inputs, **self._decoded(inputs)}
        try:
            if self._binding is not None:
                bound = self._run_bound(self._binding, inputs, output_names)
                if bound is not None:
                    return bound
            if self._has_bf16:
                return self._execute_bf16(inputs, output_names)
            arrays = self.session.run(output_names, inputs, self._options)
        except BackendError:
            raise
        except Exception as error:
            raise BackendError(error_text(error)) from error
        return dict(zip(output_names, arrays, strict=True))

    def unload(self) -> None:
        """Let go of the session; it ends with its last instance."""
        self._binding = None
        del self.session

    def _make_binding(
        self, config: ModelConfig, kind: InstanceKind, allocate: Allocate
    ) -> OutputBinding | None:
        """Return kept outputs, if shapes are foreseen and some are large."""
        shapes = [
            {node.name: node.shape for node in nodes}
            for nodes in (self.session.get_inputs(), self.session.get_outputs())
        ]
        # States leave by outputs that the configuration does not have.
        is_plain = not self._texts and not config.states
        plans = output_plans(config, *shapes) if is_plain else ()
        # Without it a BF16 output is copied once more.
        usual_bytes = GPU_WORTH_BYTES if kind is InstanceKind.GPU else WORTH_BYTES
        worth_bytes = 0 if self._bf16_outputs else usual_bytes
        if not plans or not is_worth_it(plans, config, worth_bytes):
            return None
        return OutputBinding(
            self.session, plans, self._bf16_inputs, allocate, worth_bytes
        )

    def _run_bound(
        self, binding: OutputBinding, inputs: Tensors, output_names: Sequence[str]
    ) -> Tensors | None:
        try:
            return binding.run(inputs, output_names, self._options)
        except UnforeseenShapeError as error:
            _log.warning(
                "outputs are not of the shapes that the model's file declares",
                model=self._model,
                reason=str(error),
            )
            self._binding = None
            return None

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


def _run_options(entries: dict[str, str]) -> ort.RunOptions | None:
    if not entries:
        return None
    options = ort.RunOptions()
    for key, value in entries.items():
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
