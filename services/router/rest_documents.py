"""The JSON documents of the REST API besides inference. Pure.

Source: KServe V2 "Server Metadata" and "Model Metadata", and Triton's model
configuration, model repository and statistics extensions. Unlike protobuf's JSON
these keep field names and empty fields, and 64-bit integers are numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import orjson

from protos import inference_pb2 as pb
from protos import model_config_pb2
from services.core import model_config_json
from services.router import rest_json
from services.router.rest_response import JSON, HttpReply

# What Triton answers, with 400, about a model that is not ready.
NOT_READY: Final = "Model version not ready"
TEXT: Final = "text/plain"
# Health, and management calls that have nothing to say.
EMPTY_TEXT: Final = HttpReply(content_type=TEXT)
EMPTY_JSON: Final = HttpReply(content_type=JSON)

TensorMetadata: TypeAlias = pb.ModelMetadataResponse.TensorMetadata


def document(value: object) -> HttpReply:
    """Return the answer whose body is ``value`` as JSON."""
    return HttpReply(content_type=JSON, body=orjson.dumps(value))


def error_body(message: str) -> bytes:
    """Return the body of an error, where the gateway does not make it."""
    return orjson.dumps({"error": message})


def server_metadata(name: str, version: str, extensions: Sequence[str]) -> HttpReply:
    """Return the answer to GET /v2."""
    return document({"name": name, "version": version, "extensions": list(extensions)})


def model_metadata(metadata: pb.ModelMetadataResponse) -> HttpReply:
    """Return the answer to GET /v2/models/NAME."""
    return document(
        {
            "name": metadata.name,
            "versions": list(metadata.versions),
            "platform": metadata.platform,
            "inputs": _tensors(metadata.inputs),
            "outputs": _tensors(metadata.outputs),
        }
    )


def _tensors(tensors: Iterable[TensorMetadata]) -> list[dict[str, object]]:
    return [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        for tensor in tensors
    ]


def model_config(config_message: bytes) -> HttpReply:
    """Return the answer to GET .../config, from a serialized ModelConfig."""
    config = model_config_pb2.ModelConfig.FromString(config_message)
    return HttpReply(content_type=JSON, body=model_config_json.to_json(config))


def read_index_request(body: bytes, repository: str) -> pb.RepositoryIndexRequest:
    """Read POST /v2/repository/index, whose body may be empty.

    Raises:
        InternalError: not JSON, or "ready" is no boolean.
    """
    request = pb.RepositoryIndexRequest(repository_name=repository)
    if body:
        ready = rest_json.optional_member(rest_json.parse(body), "ready")
        if ready is not None:
            request.ready = rest_json.boolean(ready, "ready")
    return request


def repository_index(index: pb.RepositoryIndexResponse) -> HttpReply:
    """Return the answer to it: an array, whose entries leave out what is empty."""
    entries: list[Mapping[str, str]] = []
    for model in index.models:
        entry = {
            "name": model.name,
            "version": model.version,
            "state": model.state,
            "reason": model.reason,
        }
        entries.append({key: value for key, value in entry.items() if value})
    return document(entries)


def model_statistics(statistics: pb.ModelStatisticsResponse) -> HttpReply:
    """Return the answer to GET .../stats."""
    models = [_model_statistics(model) for model in statistics.model_stats]
    return document({"model_stats": models})


def _model_statistics(model: pb.ModelStatistics) -> dict[str, object]:
    stats = model.inference_stats
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": model.last_inference,
        "inference_count": model.inference_count,
        "execution_count": model.execution_count,
        "inference_stats": {
            "success": _duration(stats.success),
            "fail": _duration(stats.fail),
            "queue": _duration(stats.queue),
            "compute_input": _duration(stats.compute_input),
            "compute_infer": _duration(stats.compute_infer),
            "compute_output": _duration(stats.compute_output),
            "cache_hit": _duration(stats.cache_hit),
            "cache_miss": _duration(stats.cache_miss),
        },
        "response_stats": {
            key: _response_statistics(value)
            for key, value in model.response_stats.items()
        },
        "batch_stats": [
            {
                "batch_size": batch.batch_size,
                "compute_input": _duration(batch.compute_input),
                "compute_infer": _duration(batch.compute_infer),
                "compute_output": _duration(batch.compute_output),
            }
            for batch in model.batch_stats
        ],
        "memory_usage": [
            {"type": use.type, "id": use.id, "byte_size": use.byte_size}
            for use in model.memory_usage
        ],
    }


def _response_statistics(stats: pb.InferResponseStatistics) -> dict[str, object]:
    return {
        "compute_infer": _duration(stats.compute_infer),
        "compute_output": _duration(stats.compute_output),
        "success": _duration(stats.success),
        "fail": _duration(stats.fail),
        "empty_response": _duration(stats.empty_response),
        "cancel": _duration(stats.cancel),
    }


def _duration(duration: pb.StatisticDuration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}
