"""What operators switch on: shared memory, forwarded headers, restricted APIs."""

import base64
import contextlib
import http.client
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, shared_memory

from tests.chaos.load import wait_until
from tests.support.stack import Stack, build_demo, running_stack

pytestmark = pytest.mark.timeout(180)

HTTP = tritonclient.http
GRPC = tritonclient.grpc
FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
SECOND = np.full((1, 16), 3, dtype=np.int32)
# As clients hand it over: in base64.
HANDLE = base64.b64encode(bytes(64))

ECHO_CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
ECHO_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([
                pb_utils.Tensor("OUT", np.array([one.parameters()], dtype=object))
            ])
            for one in requests
        ]
"""
HELD_CONFIG = """
backend: "python" max_batch_size: 0
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1, 16 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1, 16 ] } ]
"""
# Executes for as long as its client wants.
HELD_MODEL = """
import json, pathlib, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        folder = pathlib.Path(json.loads(request.parameters())["folder"])
        (folder / "begun").touch()
        while not (folder / "go on").exists():
            time.sleep(0.005)
        x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)])]
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Run a stack with everything on that is off by default."""
    folder = tmp_path_factory.mktemp("guarded") / "models"
    build_demo(folder, "--only", "simple")
    (folder / "echo" / "1").mkdir(parents=True)
    (folder / "echo" / "config.pbtxt").write_text(ECHO_CONFIG)
    (folder / "echo" / "1" / "model.py").write_text(ECHO_MODEL)
    (folder / "held" / "1").mkdir(parents=True)
    (folder / "held" / "config.pbtxt").write_text(HELD_CONFIG)
    (folder / "held" / "1" / "model.py").write_text(HELD_MODEL)
    with running_stack(
        folder,
        "--allow-client-shm=true",
        "--http-header-forward-pattern=^(my-|timeout$)",
        "--grpc-header-forward-pattern=^(my-|timeout$)",
        "--http-restricted-api=model-repository,metadata:admin-key=secret",
        "--grpc-restricted-protocol=model-repository:admin-key=secret",
    ) as running:
        yield running


def client_of(stack: Stack, module: Any) -> Any:  # noqa: ANN401 - untyped clients
    port = stack.http if module is HTTP else stack.grpc
    return module.InferenceServerClient(f"127.0.0.1:{port}")


@contextlib.contextmanager
def shared(byte_size: int) -> Iterator[tuple[Any, str]]:
    """Create shared memory as clients do; yield it with its key."""
    key = f"/nereid-test-{uuid4().hex}"
    region = shared_memory.create_shared_memory_region("region", key, byte_size)
    try:
        yield region, key
    finally:
        shared_memory.destroy_shared_memory_region(region)


@pytest.mark.parametrize("module", [HTTP, GRPC])
def test_tensors_travel_through_shared_memory(guarded: Stack, module: Any) -> None:  # noqa: ANN401
    client = client_of(guarded, module)
    name = f"region-{module.__name__}"
    with shared(256) as (region, key):
        shared_memory.set_shared_memory_region(region, [FIRST, SECOND])
        client.register_system_shared_memory(name, key, 256)
        status = client.get_system_shared_memory_status(name)
        assert key in str(status)
        tensors = [module.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
        for index, tensor in enumerate(tensors):
            tensor.set_shared_memory(name, 64, offset=64 * index)
        output = module.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory(name, 64, offset=128)
        other = module.InferRequestedOutput("OUTPUT1")
        result = client.infer("simple", tensors, outputs=[output, other])
        found = shared_memory.get_contents_as_numpy(region, np.int32, [1, 16], 128)
        np.testing.assert_array_equal(found, FIRST + SECOND)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), FIRST - SECOND)
        client.unregister_system_shared_memory(name)
        with pytest.raises(InferenceServerException, match="Unable to find shared"):
            client.infer("simple", tensors, outputs=[output])


@pytest.mark.parametrize("module", [HTTP, GRPC])
def test_a_region_in_use_is_unregistered_when_its_request_has_ended(
    guarded: Stack,
    module: Any,  # noqa: ANN401
    tmp_path: Path,
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    client, name = client_of(guarded, module), f"busy-{module.__name__}"
    with shared(64) as (region, key), ThreadPoolExecutor(1) as calling:
        shared_memory.set_shared_memory_region(region, [FIRST])
        client.register_system_shared_memory(name, key, 64)
        tensor = module.InferInput("IN", [1, 16], "INT32")
        tensor.set_shared_memory(name, 64)
        folder = {"folder": str(tmp_path)}
        # Each thread needs a client of its own: they are not made to be shared.
        other = client_of(guarded, module)
        call = calling.submit(other.infer, "held", [tensor], parameters=folder)
        wait_until(begun.exists, within_s=20)
        client.unregister_system_shared_memory(name)
        assert key in str(client.get_system_shared_memory_status())
        with pytest.raises(InferenceServerException, match="already in manager"):
            client.register_system_shared_memory(name, key, 64)
        go_on.touch()
        np.testing.assert_array_equal(call.result().as_numpy("OUT"), FIRST)
        wait_until(
            lambda: name not in str(client.get_system_shared_memory_status()),
            within_s=10,
        )


def test_both_doors_share_their_regions(guarded: Stack) -> None:
    http_client, grpc_client = client_of(guarded, HTTP), client_of(guarded, GRPC)
    with shared(64) as (_, key):
        http_client.register_system_shared_memory("both", key, 64)
        with pytest.raises(InferenceServerException, match="already in manager"):
            grpc_client.register_system_shared_memory("both", key, 64)
        grpc_client.unregister_system_shared_memory()
        assert http_client.get_system_shared_memory_status() == []


def test_memory_that_its_client_took_away_is_an_error_of_the_request(
    guarded: Stack,
) -> None:
    client = client_of(guarded, GRPC)
    with shared(128) as (_, key):
        client.register_system_shared_memory("gone", key, 128)
    tensors = [GRPC.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
    for tensor in tensors:
        tensor.set_shared_memory("gone", 64)
    with pytest.raises(InferenceServerException, match="cannot be used by this worker"):
        client.infer("simple", tensors)
    client.unregister_system_shared_memory("gone")


@pytest.mark.parametrize("module", [HTTP, GRPC])
def test_shared_memory_is_off_by_default(stack: Stack, module: Any) -> None:  # noqa: ANN401
    client = client_of(stack, module)
    with shared(64) as (_, key):
        calls: tuple[Callable[[], object], ...] = (
            lambda: client.register_system_shared_memory("r", key, 64),
            lambda: client.unregister_system_shared_memory("r"),
            lambda: client.register_cuda_shared_memory("r", HANDLE, 0, 64),
        )
        for call in calls:
            with pytest.raises(InferenceServerException, match="allow-client-shm=true"):
                call()
    status = client.get_cuda_shared_memory_status()
    assert not (status if module is HTTP else status.regions)


@pytest.mark.parametrize("module", [HTTP, GRPC])
def test_the_memory_of_a_gpu_cannot_be_registered(guarded: Stack, module: Any) -> None:  # noqa: ANN401
    client = client_of(guarded, module)
    with pytest.raises(InferenceServerException, match="invalid args"):
        client.register_cuda_shared_memory("r", HANDLE, 0, 64)
    with pytest.raises(InferenceServerException, match="Unable to find cuda shared"):
        client.get_cuda_shared_memory_status("r")
    client.unregister_cuda_shared_memory()


def echoed(client: Any, module: Any, **how: Any) -> Any:  # noqa: ANN401
    tensor = module.InferInput("IN", [1], "INT32")
    tensor.set_data_from_numpy(np.array([1], np.int32))
    result = client.infer("echo", [tensor], **how)
    return json.loads(result.as_numpy("OUT")[0])


@pytest.mark.parametrize("module", [HTTP, GRPC])
def test_matching_headers_reach_the_model(guarded: Stack, module: Any) -> None:  # noqa: ANN401
    client = client_of(guarded, module)
    headers = {"my-tenant": "a b", "other": "x"}
    found = echoed(client, module, headers=headers, parameters={"k": 7})
    assert found == {"my-tenant": "a b", "k": 7}
    assert echoed(client, module) == {}


@pytest.mark.parametrize("module", [HTTP, GRPC])
def test_a_header_called_as_a_parameter_of_ours_is_refused(
    guarded: Stack,
    module: Any,  # noqa: ANN401
) -> None:
    client = client_of(guarded, module)
    with pytest.raises(InferenceServerException, match="'timeout' is reserved"):
        echoed(client, module, headers={"timeout": "1"})


def test_restricted_apis_demand_their_header(guarded: Stack) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", guarded.http, timeout=20)

    def get(path: str, **headers: str) -> tuple[int, Any]:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        connection.request("GET", path, headers=named)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")

    refusal = {"error": "This API is restricted, expecting header 'admin-key'"}
    assert get("/v2") == (403, refusal)
    assert get("/v2/models/simple", admin_key="wrong") == (403, refusal)
    assert get("/v2/models/simple", admin_key="secret")[0] == 200
    assert get("/v2/models/simple/config")[0] == 200
    connection.close()


def test_restricted_protocols_demand_their_header(guarded: Stack) -> None:
    client = client_of(guarded, GRPC)
    key = "triton-grpc-protocol-admin-key"
    for headers in ({}, {key: "wrong"}, {"admin-key": "secret"}):
        with pytest.raises(InferenceServerException) as caught:
            client.get_model_repository_index(headers=headers)
        assert "UNAVAILABLE" in str(caught.value.status())
        expected = f"This protocol is restricted, expecting header '{key}'"
        assert caught.value.message() == expected
    index = client.get_model_repository_index(headers={key: "secret"})
    assert {model.name for model in index.models} == {"simple", "echo", "held"}
    assert client.get_model_metadata("simple").name == "simple"
