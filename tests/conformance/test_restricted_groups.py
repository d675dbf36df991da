"""Every part of the API restricted, each by a header of its own, at every door."""

import http.client
import json
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.support.stack import Stack, build_demo, running_stack

pytestmark = pytest.mark.timeout(120)

GRPC: Final = tritonclient.grpc
X: Final = np.arange(16, dtype=np.int32).reshape(1, 16)
CALLER_CONFIG: Final = """
backend: "python" max_batch_size: 0
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1, 16 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1, 16 ] } ]
"""
# What a model asks of another one is not asked by a client.
CALLER_MODEL: Final = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        inputs = [pb_utils.Tensor(f"INPUT{i}", x) for i in (0, 1)]
        nested = pb_utils.InferenceRequest(
            model_name="simple", inputs=inputs, requested_output_names=["OUTPUT0"]
        ).exec()
        if nested.has_error():
            return nested
        found = pb_utils.get_output_tensor_by_name(nested, "OUTPUT0").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", found)])
"""


def infer(client: Any, headers: dict[str, str]) -> None:  # noqa: ANN401
    tensor = GRPC.InferInput("IN", [1, 16], "INT32")
    tensor.set_data_from_numpy(X)
    found = client.infer("caller", [tensor], headers=headers).as_numpy("OUT")
    np.testing.assert_array_equal(found, 2 * X)


Call = Callable[[Any, dict[str, str]], object]
GROUPS: Final[dict[str, tuple[str, str, Call]]] = {
    "health": (
        "GET",
        "/v2/health/ready",
        lambda client, headers: client.is_server_ready(headers=headers),
    ),
    "metadata": (
        "GET",
        "/v2/models/simple",
        lambda client, headers: client.get_server_metadata(headers=headers),
    ),
    "inference": ("POST", "/v2/models/simple/infer", infer),
    "shared-memory": (
        "GET",
        "/v2/systemsharedmemory/status",
        lambda client, headers: client.get_system_shared_memory_status(headers=headers),
    ),
    "model-config": (
        "GET",
        "/v2/models/simple/config",
        lambda client, headers: client.get_model_config("simple", headers=headers),
    ),
    "model-repository": (
        "POST",
        "/v2/repository/index",
        lambda client, headers: client.get_model_repository_index(headers=headers),
    ),
    "statistics": (
        "GET",
        "/v2/models/simple/stats",
        lambda client, headers: client.get_inference_statistics(headers=headers),
    ),
    "trace": (
        "GET",
        "/v2/trace/setting",
        lambda client, headers: client.get_trace_settings(headers=headers),
    ),
    "logging": (
        "GET",
        "/v2/logging",
        lambda client, headers: client.get_log_settings(headers=headers),
    ),
}
BODY: Final = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "INT32", "shape": [1, 16], "data": X.tolist()}
            for name in ("INPUT0", "INPUT1")
        ]
    }
)


@pytest.fixture(scope="module")
def restricted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("restricted") / "models"
    build_demo(folder, "--only", "simple")
    (folder / "caller" / "1").mkdir(parents=True)
    (folder / "caller" / "config.pbtxt").write_text(CALLER_CONFIG)
    model = textwrap.dedent(CALLER_MODEL)
    (folder / "caller" / "1" / "model.py").write_text(model)
    flags = [
        flag
        for group in GROUPS
        for flag in (
            f"--http-restricted-api={group}:key-{group}=of {group}",
            f"--grpc-restricted-protocol={group}:key-{group}=of {group}",
        )
    ]
    # That it gets ready shows that it asks itself how it is all the same.
    with running_stack(folder, *flags) as running:
        yield running


@pytest.mark.parametrize("group", GROUPS)
def test_each_group_of_rest_demands_its_header(restricted: Stack, group: str) -> None:
    method, path, _ = GROUPS[group]
    connection = http.client.HTTPConnection("127.0.0.1", restricted.http)

    def ask(headers: dict[str, str]) -> tuple[int, bytes]:
        body = BODY if group == "inference" else "" if method == "POST" else None
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()

    for headers in ({}, {f"key-{group}": "wrong"}, {"key": f"of {group}"}):
        status, body = ask(headers)
        assert (status, json.loads(body)) == (
            403,
            {"error": f"This API is restricted, expecting header 'key-{group}'"},
        )
    assert ask({f"key-{group}": f"of {group}"})[0] == 200
    connection.close()


@pytest.mark.parametrize("door", ["grpc", "http"])
@pytest.mark.parametrize("group", GROUPS)
def test_each_group_of_grpc_demands_its_header_at_both_ports(
    restricted: Stack, group: str, door: str
) -> None:
    _, _, call = GROUPS[group]
    key = f"triton-grpc-protocol-key-{group}"
    with GRPC.InferenceServerClient(f"127.0.0.1:{getattr(restricted, door)}") as client:
        for headers in ({}, {key: "wrong"}, {f"key-{group}": f"of {group}"}):
            with pytest.raises(InferenceServerException) as caught:
                call(client, headers)
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
            expected = f"This protocol is restricted, expecting header '{key}'"
            assert caught.value.message() == expected
        call(client, {key: f"of {group}"})


@pytest.mark.parametrize("door", ["grpc", "http"])
@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_the_health_checks_of_grpc_are_of_that_group(
    restricted: Stack, door: str, method: str
) -> None:
    request = health_pb2.HealthCheckRequest()
    target = f"127.0.0.1:{getattr(restricted, door)}"
    with grpc.insecure_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def ask(metadata: tuple[tuple[str, str], ...]) -> Any:  # noqa: ANN401
            if method == "Check":
                return stub.Check(request, metadata=metadata, timeout=10)
            return next(stub.Watch(request, metadata=metadata, timeout=10))

        # The gateway's own mark cannot be taken off, nor does it open anything.
        for metadata in ((), (("nereid-gateway", ""),), (("nereid-gateway", "1"),)):
            with pytest.raises(grpc.RpcError) as caught:
                ask(metadata)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        key = ("triton-grpc-protocol-key-health", "of health")
        assert ask((key,)).status == health_pb2.HealthCheckResponse.SERVING
