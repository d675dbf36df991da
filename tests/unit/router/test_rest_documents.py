import orjson
import pytest

from protos import inference_pb2 as pb
from protos import model_config_pb2
from services.core.errors import InternalError
from services.router import rest_documents

DURATIONS = (
    *("success", "fail", "queue", "compute_input", "compute_infer"),
    *("compute_output", "cache_hit", "cache_miss"),
)
ModelIndex = pb.RepositoryIndexResponse.ModelIndex
TensorMetadata = pb.ModelMetadataResponse.TensorMetadata


def test_the_server_tells_its_name_version_and_extensions() -> None:
    reply = rest_documents.server_metadata("nereid", "1.0", ("a", "b"))
    assert reply.body == b'{"name":"nereid","version":"1.0","extensions":["a","b"]}'
    assert reply.content_type == "application/json"


def test_metadata_has_numbers_where_protobuf_would_have_strings() -> None:
    metadata = pb.ModelMetadataResponse(
        name="m",
        versions=["1", "3"],
        platform="onnxruntime_onnx",
        inputs=[TensorMetadata(name="x", datatype="FP32", shape=[-1, 4])],
    )
    assert rest_documents.model_metadata(metadata).body == (
        b'{"name":"m","versions":["1","3"],"platform":"onnxruntime_onnx",'
        b'"inputs":[{"name":"x","datatype":"FP32","shape":[-1,4]}],"outputs":[]}'
    )


def test_a_configuration_keeps_the_names_of_its_fields() -> None:
    config = model_config_pb2.ModelConfig(name="m", max_batch_size=8)
    body = rest_documents.model_config(config.SerializeToString()).body
    assert orjson.loads(body)["max_batch_size"] == 8


@pytest.mark.parametrize(
    ("body", "ready"),
    [
        (b"", False),
        (b"{}", False),
        (b'{"ready":true}', True),
        (b'{"ready":false}', False),
    ],
)
def test_an_index_may_be_of_ready_models_only(body: bytes, *, ready: bool) -> None:
    request = rest_documents.read_index_request(body, "repo")
    assert (request.ready, request.repository_name) == (ready, "repo")


@pytest.mark.parametrize("body", [b"{x", b'{"ready":1}'])
def test_a_bad_index_request_is_refused(body: bytes) -> None:
    with pytest.raises(InternalError):
        rest_documents.read_index_request(body, "")


def test_an_index_is_an_array_whose_entries_leave_out_what_is_empty() -> None:
    index = pb.RepositoryIndexResponse(
        models=[
            ModelIndex(name="a", version="1", state="READY"),
            ModelIndex(name="b"),
            ModelIndex(name="c", version="1", state="UNAVAILABLE", reason="unloaded"),
        ]
    )
    assert orjson.loads(rest_documents.repository_index(index).body) == [
        {"name": "a", "version": "1", "state": "READY"},
        {"name": "b"},
        {"name": "c", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
    ]


def test_statistics_keep_their_zeros() -> None:
    stats = pb.ModelStatistics(
        name="m",
        version="1",
        last_inference=2**60,
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=4, compute_infer=pb.StatisticDuration(count=1, ns=5)
            )
        ],
    )
    stats.response_stats["0"].success.count = 2
    body = rest_documents.model_statistics(
        pb.ModelStatisticsResponse(model_stats=[stats])
    ).body
    (model,) = orjson.loads(body)["model_stats"]
    zero = {"count": 0, "ns": 0}
    assert model["last_inference"] == 2**60
    assert model["inference_stats"] == dict.fromkeys(DURATIONS, zero)
    assert model["batch_stats"][0] == {
        "batch_size": 4,
        "compute_input": zero,
        "compute_infer": {"count": 1, "ns": 5},
        "compute_output": zero,
    }
    assert model["response_stats"]["0"]["success"] == {"count": 2, "ns": 0}
    assert model["memory_usage"] == []


def test_an_error_is_an_object_with_one_member() -> None:
    assert rest_documents.error_body('say "no"') == b'{"error":"say \\"no\\""}'
