"""A model whose answer tells which of its files was asked: Y = X + addend."""

from pathlib import Path
from typing import Final

from onnx import TensorProto, helper

CONFIG: Final = """
backend: "onnxruntime"
max_batch_size: 8
input { name: "X" data_type: TYPE_INT32 dims: 4 }
output { name: "Y" data_type: TYPE_INT32 dims: 4 }
instance_group { kind: KIND_CPU count: 1 }
"""


def adder_bytes(addend: int) -> bytes:
    """Return the ONNX file."""
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.INT32, ["b", 4])
        for name in "XY"
    )
    constant = helper.make_tensor("K", TensorProto.INT32, [1], [addend])
    node = helper.make_node("Add", ["X", "K"], ["Y"])
    graph = helper.make_graph([node], "adder", [x], [y], initializer=[constant])
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
    content: bytes = model.SerializeToString()
    return content


def write_adder(
    repository: Path,
    addend: int,
    *,
    name: str = "adder",
    version: int = 1,
    config: str = CONFIG,
) -> Path:
    """Write one version, complete when it appears; return the model's folder."""
    folder = repository / name
    folder.mkdir(parents=True, exist_ok=True)
    place(folder / "config.pbtxt", config.encode())
    being_written = folder / f".{version}"
    being_written.mkdir()
    (being_written / "model.onnx").write_bytes(adder_bytes(addend))
    being_written.rename(folder / str(version))
    return folder


def place(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all."""
    aside = path.with_name(f".{path.name}")
    aside.write_bytes(content)
    aside.replace(path)
