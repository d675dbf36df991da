"""Models and bodies that the tests of the REST codec share."""

from collections.abc import Mapping
from typing import Any

import orjson

from protos import inference_pb2 as pb
from services.core.datatype import DataType
from services.core.model_config import ModelConfig, ModelInput, ModelOutput
from services.router.rest_plan import ModelView, ReplyPlan
from services.router.rest_request import parse_infer

NOTHING: Mapping[str, str] = {}


def view(config: ModelConfig, version: str = "") -> ModelView:
    """Return ``config`` as the codec sees it."""
    return ModelView(name=config.name, version=version, config=config)


def adder() -> ModelView:
    """Return a model that adds two INT32[16] and does not mind the batch."""
    inputs, outputs = (
        tuple(
            kind(name=f"{name}{i}", datatype=DataType.INT32, dims=(16,)) for i in (0, 1)
        )
        for kind, name in ((ModelInput, "INPUT"), (ModelOutput, "OUTPUT"))
    )
    return view(
        ModelConfig(
            name="simple",
            backend="onnxruntime",
            max_batch_size=8,
            inputs=inputs,  # type: ignore[arg-type]
            outputs=outputs,  # type: ignore[arg-type]
        )
    )


def echo(
    datatype: DataType, dims: tuple[int, ...] = (-1,), *, batches: bool = False
) -> ModelView:
    """Return a model with one input of any size."""
    return view(
        ModelConfig(
            name="echo",
            backend="onnxruntime",
            max_batch_size=8 if batches else 0,
            inputs=(ModelInput(name="IN", datatype=datatype, dims=dims),),
            outputs=(ModelOutput(name="OUT", datatype=datatype, dims=dims),),
        )
    )


def tensor(data: object, datatype: str = "INT32", **fields: object) -> dict[str, Any]:
    """Return one input as JSON has it."""
    shape = [len(data)] if isinstance(data, list) else [1]
    return {"name": "IN", "datatype": datatype, "shape": shape, "data": data, **fields}


def body(*tensors: object, **fields: object) -> bytes:
    """Return the JSON of a request."""
    return orjson.dumps({"inputs": list(tensors), **fields})


def adder_body(**fields: object) -> bytes:
    """Return a valid request to ``adder``."""
    values = [{"shape": [1, 16], "data": list(range(16))}] * 2
    tensors = (
        {"name": f"INPUT{i}", "datatype": "INT32", **v} for i, v in enumerate(values)
    )
    return body(*tensors, **fields)


def parsed(
    text: bytes, model: ModelView, headers: Mapping[str, str] = NOTHING
) -> tuple[pb.ModelInferRequest, ReplyPlan]:
    """Parse a body and read what admission would get."""
    result = parse_infer(text, headers, model)
    return pb.ModelInferRequest.FromString(result.request), result.reply
