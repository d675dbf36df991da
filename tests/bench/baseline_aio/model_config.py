"""A model's config.pbtxt, and the metadata that follows from it."""

from collections.abc import Iterable
from pathlib import Path

from google.protobuf import text_format

from protos import inference_pb2 as pb
from protos import model_config_pb2

VERSION = "1"


def read(model_directory: Path) -> model_config_pb2.ModelConfig:
    """Return the configuration, which must name every input and output."""
    text = (model_directory / "config.pbtxt").read_text(encoding="utf-8")
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    config.name = config.name or model_directory.name
    return config


def metadata(config: model_config_pb2.ModelConfig) -> pb.ModelMetadataResponse:
    """Return what clients ask about the model's tensors."""
    return pb.ModelMetadataResponse(
        name=config.name,
        versions=[VERSION],
        platform=config.platform,
        inputs=_tensors(config, config.input),
        outputs=_tensors(config, config.output),
    )


def _tensors(
    config: model_config_pb2.ModelConfig,
    tensors: Iterable[model_config_pb2.ModelInput | model_config_pb2.ModelOutput],
) -> list[pb.ModelMetadataResponse.TensorMetadata]:
    batch = [-1] if config.max_batch_size else []
    return [
        pb.ModelMetadataResponse.TensorMetadata(
            name=tensor.name,
            datatype=model_config_pb2.DataType.Name(tensor.data_type).removeprefix(
                "TYPE_"
            ),
            shape=[*batch, *tensor.dims],
        )
        for tensor in tensors
    ]
