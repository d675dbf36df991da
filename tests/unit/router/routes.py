"""Routes and requests that the router's tests share."""

from protos import inference_pb2 as pb
from services.core.datatype import DataType
from services.core.lifecycle import ModelState
from services.core.model_config import (
    DynamicBatching,
    ModelConfig,
    ModelInput,
    ModelOutput,
)
from services.router.route_table import Route

Request = pb.ModelInferRequest


def add_sub(name: str = "simple", **fields: object) -> ModelConfig:
    """Return the configuration of an adder of two INT32[16]."""
    settings: dict[str, object] = {
        "name": name,
        "backend": "onnxruntime",
        "max_batch_size": 8,
        "inputs": tuple(
            ModelInput(name=f"INPUT{i}", datatype=DataType.INT32, dims=(16,))
            for i in (0, 1)
        ),
        "outputs": tuple(
            ModelOutput(name=f"OUTPUT{i}", datatype=DataType.INT32, dims=(16,))
            for i in (0, 1)
        ),
        "dynamic_batching": DynamicBatching(),
    }
    return ModelConfig(**{**settings, **fields})  # type: ignore[arg-type]


def identity(datatype: DataType, *, max_batch_size: int = 8) -> ModelConfig:
    """Return the configuration of a model with one variable input."""
    return ModelConfig(
        name="identity",
        backend="onnxruntime",
        max_batch_size=max_batch_size,
        inputs=(ModelInput(name="INPUT0", datatype=datatype, dims=(-1,)),),
        outputs=(ModelOutput(name="OUTPUT0", datatype=datatype, dims=(-1,)),),
    )


def route(
    config: ModelConfig,
    version: int = 1,
    *,
    state: ModelState = ModelState.READY,
    generation: int = 1,
) -> Route:
    """Return a route to ``config``."""
    return Route(
        model=config.name,
        version=version,
        state=state,
        generation=generation,
        config=config,
    )


def tensor(
    name: str, shape: tuple[int, ...], datatype: str = "INT32"
) -> pb.ModelInferRequest.InferInputTensor:
    """Return the head of an input tensor."""
    return Request.InferInputTensor(name=name, datatype=datatype, shape=shape)


def add_sub_request(rows: int = 1, **fields: object) -> pb.ModelInferRequest:
    """Return a valid request to ``add_sub``."""
    settings: dict[str, object] = {
        "model_name": "simple",
        "inputs": [tensor(f"INPUT{i}", (rows, 16)) for i in (0, 1)],
        "raw_input_contents": [bytes(64 * rows)] * 2,
    }
    return Request(**{**settings, **fields})  # type: ignore[arg-type]
