"""Reading a TensorRT plan."""

from pathlib import Path
from typing import Any, Final

import structlog
import tensorrt as trt

from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError
from services.worker.backends.tensorrt_profiles import (
    EngineFacts,
    EngineTensor,
    Profile,
    ShapeRange,
)

_TYPES: Final[dict[str, DataType]] = {
    "BF16": DataType.BF16,
    "BOOL": DataType.BOOL,
    "FLOAT": DataType.FP32,
    "HALF": DataType.FP16,
    "INT32": DataType.INT32,
    "INT64": DataType.INT64,
    "INT8": DataType.INT8,
    "UINT8": DataType.UINT8,
}

_log = structlog.get_logger(__name__)


class Logger(trt.ILogger):  # type: ignore[misc]
    """Keeps TensorRT's last error, for it only says that something failed."""

    def __init__(self) -> None:
        """Begin without an error."""
        trt.ILogger.__init__(self)
        self.last_error = "no reason given"

    def log(self, severity: Any, text: str) -> None:  # noqa: ANN401
        """Take a line of TensorRT, from any thread."""
        if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
            self.last_error = text
            _log.error("TensorRT", text=text)
        elif severity == trt.ILogger.WARNING:
            _log.warning("TensorRT", text=text)


def read_engine(path: Path, logger: Logger) -> Any:  # noqa: ANN401
    """Return the engine that a plan holds, in the memory of the GPU.

    Raises:
        BackendError: it is none, or one for another GPU or version.
    """
    trt.init_libnvinfer_plugins(logger, "")
    runtime = trt.Runtime(logger)
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        message = f"unable to create engine from {path}: {logger.last_error}"
        raise BackendError(message)
    return engine


def facts_of(engine: Any) -> EngineFacts:  # noqa: ANN401
    """Return what an engine says of itself.

    Raises:
        ConfigError: a tensor is of a type that the protocol lacks.
    """
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    inputs = [
        name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
    ]
    outputs = [name for name in names if name not in inputs]
    return EngineFacts(
        inputs=tuple(_tensor(engine, name) for name in inputs),
        outputs=tuple(_tensor(engine, name) for name in outputs),
        profiles=tuple(
            Profile(
                index=index,
                ranges={name: _range(engine, name, index) for name in inputs},
            )
            for index in range(engine.num_optimization_profiles)
        ),
    )


def _tensor(engine: Any, name: str) -> EngineTensor:  # noqa: ANN401
    kind = engine.get_tensor_dtype(name).name
    if kind not in _TYPES:
        message = f"tensor '{name}' is a {kind}, which the protocol lacks"
        raise ConfigError(message)
    return EngineTensor(
        name=name,
        datatype=_TYPES[kind],
        shape=tuple(engine.get_tensor_shape(name)),
        is_shape=engine.is_shape_inference_io(name),
        is_linear=engine.get_tensor_format(name) == trt.TensorFormat.LINEAR,
    )


def _range(engine: Any, name: str, index: int) -> ShapeRange:  # noqa: ANN401
    least, best, most = engine.get_tensor_profile_shape(name, index)
    return ShapeRange(least=tuple(least), best=tuple(best), most=tuple(most))
