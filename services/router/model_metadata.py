"""What a model tells about itself, from its configuration. Pure.

Source: KServe V2 "Model Metadata"; for a model that batches, shapes begin with a
-1 for the batch dimension, as Triton gives them.
"""

from collections.abc import Sequence

from protos import inference_pb2
from services.core.model_config import ModelConfig, ModelInput, ModelOutput
from services.router.route_table import Route, RouteTable


def model_metadata(
    table: RouteTable, route: Route
) -> inference_pb2.ModelMetadataResponse:
    """Return the metadata of the model that ``route`` belongs to."""
    config = route.config
    return inference_pb2.ModelMetadataResponse(
        name=route.model,
        versions=table.ready_versions(route.model),
        platform=config.platform or config.backend,
        inputs=_tensors(config, config.client_inputs),
        outputs=_tensors(config, config.outputs),
    )


def _tensors(
    config: ModelConfig, tensors: Sequence[ModelInput | ModelOutput]
) -> list[inference_pb2.ModelMetadataResponse.TensorMetadata]:
    batch = (-1,) if config.max_batch_size > 0 else ()
    return [
        inference_pb2.ModelMetadataResponse.TensorMetadata(
            name=tensor.name,
            datatype=tensor.datatype.value,
            shape=(*batch, *tensor.dims),
        )
        for tensor in tensors
    ]
