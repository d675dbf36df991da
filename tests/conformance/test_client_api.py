"""Every method of NVIDIA's four clients, against one running stack.

The same calls go through all of them; a client whose methods answer at once and one
whose methods have to be awaited are told apart in one place.
"""

import asyncio
import base64
import inspect
from collections.abc import AsyncIterator, Iterator
from queue import SimpleQueue
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException, shared_memory

from tests.support.stack import Stack, build_demo, running_stack

pytestmark = pytest.mark.timeout(180)

HTTP = tritonclient.http
GRPC = tritonclient.grpc
MODULES: Final = (HTTP, tritonclient.http.aio, GRPC, tritonclient.grpc.aio)
# They configure the client; nothing is sent.
LOCAL: Final = {"plugin", "register_plugin", "unregister_plugin"}
FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
HANDLE = base64.b64encode(bytes(64))


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Run a stack whose models are loaded on demand."""
    folder = tmp_path_factory.mktemp("controlled") / "models"
    build_demo(folder, "--only", "simple")
    with running_stack(
        folder,
        "--model-control-mode=explicit",
        "--load-model=simple",
        "--allow-client-shm=true",
        f"--trace-config=triton,file={folder / 'trace.json'}",
    ) as running:
        yield running


class Recorder:
    """A client that remembers which of its methods were called."""

    def __init__(self, module: Any, stack: Stack) -> None:  # noqa: ANN401 - untyped clients
        port = stack.http if module.__name__.startswith(HTTP.__name__) else stack.grpc
        self.module = module
        self.is_http = module.__name__.startswith(HTTP.__name__)
        self._client = module.InferenceServerClient(f"127.0.0.1:{port}")
        self.called: set[str] = set()

    async def call(self, name: str, *args: Any, **named: Any) -> Any:  # noqa: ANN401
        """Call a method, and wait for its result if it has to be awaited."""
        self.called.add(name)
        found = getattr(self._client, name)(*args, **named)
        return await found if inspect.isawaitable(found) else found

    def uncalled(self) -> set[str]:
        """Return the methods that nobody called."""
        names = {name for name in dir(self._client) if not name.startswith("_")}
        return names - self.called - LOCAL

    def inputs(self) -> list[Any]:
        kind = (HTTP if self.is_http else GRPC).InferInput
        tensors = [kind(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
        for tensor in tensors:
            tensor.set_data_from_numpy(FIRST)
        return tensors


def plain(answer: Any, is_http: bool) -> Any:  # noqa: ANN401
    """Return a list's elements by name, whatever the transport calls them."""
    return answer if is_http else dict(answer.regions)


async def health_and_metadata(client: Recorder) -> None:
    assert await client.call("is_server_live")
    assert await client.call("is_server_ready")
    assert await client.call("is_model_ready", "simple")
    metadata = await client.call("get_server_metadata")
    name = metadata["name"] if client.is_http else metadata.name
    assert name == "nereid"
    for method in ("get_model_metadata", "get_model_config"):
        assert "simple" in str(await client.call(method, "simple"))
    assert "inference_count" in str(await client.call("get_inference_statistics"))


async def inference(client: Recorder) -> None:
    result = await client.call("infer", "simple", client.inputs(), request_id="7")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), 2 * FIRST)
    kind = (HTTP if client.is_http else GRPC).InferRequestedOutput
    classes = kind("OUTPUT0", class_count=2)
    result = await client.call("infer", "simple", client.inputs(), outputs=[classes])
    assert result.as_numpy("OUTPUT0").tolist() == [[b"30:15", b"28:14"]]


async def repository(client: Recorder) -> None:
    await client.call("unload_model", "simple")
    with pytest.raises(
        InferenceServerException, match=r"is not at ready state|no avail"
    ):
        await client.call("infer", "simple", client.inputs())
    await client.call("load_model", "simple")
    index = await client.call("get_model_repository_index")
    assert "READY" in str(index)
    await client.call("infer", "simple", client.inputs())


async def settings(client: Recorder) -> None:
    for get, update, change, part in (
        (
            "get_trace_settings",
            "update_trace_settings",
            {"settings": {"trace_rate": "77"}},
            "77",
        ),
        (
            "get_log_settings",
            "update_log_settings",
            {"settings": {"log_verbose_level": 3}},
            "3",
        ),
    ):
        await client.call(update, **change)
        assert part in str(await client.call(get))
    await client.call("update_log_settings", settings={"log_verbose_level": 0})
    await client.call("update_trace_settings", settings={"trace_rate": None})


async def shared(client: Recorder) -> None:
    key = f"/nereid-test-{uuid4().hex}"
    region = shared_memory.create_shared_memory_region("r", key, 64)
    await client.call("register_system_shared_memory", "r", key, 64)
    status = await client.call("get_system_shared_memory_status")
    assert len(plain(status, client.is_http)) == 1
    await client.call("unregister_system_shared_memory")
    shared_memory.destroy_shared_memory_region(region)
    with pytest.raises(InferenceServerException, match="invalid args"):
        await client.call("register_cuda_shared_memory", "c", HANDLE, 0, 64)
    status = await client.call("get_cuda_shared_memory_status")
    assert not plain(status, client.is_http)
    await client.call("unregister_cuda_shared_memory")


async def only_some_clients(client: Recorder) -> None:
    """Call what not every client has."""
    if client.is_http:
        body, length = await client.call("generate_request_body", client.inputs())
        assert 0 < length < len(body)
        parsed = await client.call(
            "parse_response_body", b'{"model_name":"m","outputs":[]}'
        )
        assert parsed.get_response()["model_name"] == "m"
    if client.module is HTTP:
        pending = await client.call("async_infer", "simple", client.inputs())
        assert pending.get_result().as_numpy("OUTPUT0")[0, 1] == 2
    if client.module is GRPC:
        answers: SimpleQueue[Any] = SimpleQueue()

        def take(result: Any, error: Any) -> None:  # noqa: ANN401
            answers.put((result, error))

        await client.call("async_infer", "simple", client.inputs(), take)
        await client.call("start_stream", take)
        await client.call("async_stream_infer", "simple", client.inputs())
        for _ in range(2):
            result, error = answers.get(timeout=20)
            assert error is None
            assert result.as_numpy("OUTPUT0")[0, 1] == 2
        await client.call("stop_stream")
    if client.module is tritonclient.grpc.aio:

        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": "simple", "inputs": client.inputs()}

        stream = await client.call("stream_infer", requests())
        found = [error or r.as_numpy("OUTPUT0")[0, 1] async for r, error in stream]
        assert found == [2]


@pytest.mark.parametrize("module", MODULES)
def test_every_method_works(controlled: Stack, module: Any) -> None:  # noqa: ANN401
    async def everything() -> set[str]:
        client = Recorder(module, controlled)
        for part in (
            health_and_metadata,
            inference,
            repository,
            settings,
            shared,
            only_some_clients,
        ):
            await part(client)
        await client.call("close")
        return client.uncalled()

    assert asyncio.run(everything()) == set()
