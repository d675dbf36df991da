"""Tiny ONNX models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from services.core.datatype import DataType
from services.core.model_config import (
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    ModelInput,
    ModelOutput,
)
from services.worker.backend import ModelSource
from services.worker.device import Device, DeviceKind

CPU = Device(kind=DeviceKind.CPU)

ONNX_TYPES: Mapping[DataType, int] = {
    DataType.BOOL: TensorProto.BOOL,
    DataType.UINT8: TensorProto.UINT8,
    DataType.UINT16: TensorProto.UINT16,
    DataType.UINT32: TensorProto.UINT32,
    DataType.UINT64: TensorProto.UINT64,
    DataType.INT8: TensorProto.INT8,
    DataType.INT16: TensorProto.INT16,
    DataType.INT32: TensorProto.INT32,
    DataType.INT64: TensorProto.INT64,
    DataType.FP16: TensorProto.FLOAT16,
    DataType.FP32: TensorProto.FLOAT,
    DataType.FP64: TensorProto.DOUBLE,
    DataType.BYTES: TensorProto.STRING,
    DataType.BF16: TensorProto.BFLOAT16,
}

Dims = Sequence[int | str]


def write_model(
    directory: Path,
    nodes: Sequence[tuple[str, Sequence[str], Sequence[str]]],
    inputs: Mapping[str, Dims],
    outputs: Mapping[str, Dims],
    datatype: DataType = DataType.INT32,
    *,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Write model.onnx; a node is (operator, inputs, outputs)."""

    def info(name: str, dims: Dims) -> Any:  # noqa: ANN401 - onnx has no types
        return helper.make_tensor_value_info(name, ONNX_TYPES[datatype], dims)

    graph = helper.make_graph(
        [helper.make_node(op, i, o, **(attributes or {})) for op, i, o in nodes],
        "tiny",
        [info(name, dims) for name, dims in inputs.items()],
        [info(name, dims) for name, dims in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 9
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.onnx").write_bytes(model.SerializeToString())


def write_add_sub(directory: Path) -> None:
    write_model(
        directory,
        [("Add", ["A", "B"], ["SUM"]), ("Sub", ["A", "B"], ["DIFF"])],
        {"A": ["b", 4], "B": ["b", 4]},
        {"SUM": ["b", 4], "DIFF": ["b", 4]},
    )


def write_identity(directory: Path, datatype: DataType, dims: Dims = ("b", 3)) -> None:
    write_model(
        directory, [("Identity", ["X"], ["Y"])], {"X": dims}, {"Y": dims}, datatype
    )


def write_scale(directory: Path, weights: NDArray[np.float32]) -> None:
    """Write a model that multiplies rows of FP32 by weights."""
    info = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", *weights.shape])
        for name in "XY"
    ]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["X", "W"], ["Y"])],
        "tiny",
        info[:1],
        info[1:],
        [numpy_helper.from_array(weights, "W")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.onnx").write_bytes(model.SerializeToString())


def config(
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
    datatype: DataType = DataType.INT32,
    *,
    max_batch_size: int = 8,
    kind: InstanceKind = InstanceKind.CPU,
    **more: Any,  # noqa: ANN401 - any field of ModelConfig
) -> ModelConfig:
    return ModelConfig(
        name="m",
        backend="onnxruntime",
        max_batch_size=max_batch_size,
        inputs=tuple(
            ModelInput(name=name, datatype=datatype, dims=tuple(dims))
            for name, dims in inputs.items()
        ),
        outputs=tuple(
            ModelOutput(name=name, datatype=datatype, dims=tuple(dims))
            for name, dims in outputs.items()
        ),
        instance_groups=(InstanceGroup(name="m_0", kind=kind, count=1),),
        **more,
    )


ADD_SUB = config({"A": [4], "B": [4]}, {"SUM": [4], "DIFF": [4]})


def source(
    directory: Path, of: ModelConfig = ADD_SUB, device: Device = CPU
) -> ModelSource:
    return ModelSource(config=of, version=1, directory=str(directory), device=device)
