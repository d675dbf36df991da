"""NVIDIA's own clients, all four of them, against one running stack."""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(120)

FIRST = np.arange(32, dtype=np.int32).reshape(2, 16)
SECOND = np.full((2, 16), 3, dtype=np.int32)

HTTP = tritonclient.http
GRPC = tritonclient.grpc


def inputs(module: Any, **how: Any) -> list[Any]:  # noqa: ANN401 - untyped clients
    tensors = []
    for name, array in (("INPUT0", FIRST), ("INPUT1", SECOND)):
        tensor = module.InferInput(name, list(array.shape), "INT32")
        tensor.set_data_from_numpy(array, **how)
        tensors.append(tensor)
    return tensors


def assert_right(result: Any) -> None:  # noqa: ANN401
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), FIRST + SECOND)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), FIRST - SECOND)


def url(stack: Stack, module: Any, *, through_envoy: bool = False) -> str:  # noqa: ANN401
    grpc_port = stack.http if through_envoy else stack.grpc
    return f"127.0.0.1:{stack.http if module is HTTP else grpc_port}"


@pytest.mark.parametrize("module", [HTTP, GRPC])
def test_health_and_metadata(stack: Stack, module: Any) -> None:  # noqa: ANN401
    client = module.InferenceServerClient(url(stack, module))
    as_dict = {"as_json": True} if module is GRPC else {}
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.is_model_ready("simple", "1")
    assert not client.is_model_ready("nope")
    assert not client.is_model_ready("simple", "7")
    assert client.get_server_metadata(**as_dict)["name"] == "nereid"
    metadata = client.get_model_metadata("simple", **as_dict)
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["INPUT0", "INPUT1"]
    assert [int(d) for d in metadata["inputs"][0]["shape"]] == [-1, 16]
    config = client.get_model_config("simple", **as_dict)
    assert config.get("config", config)["max_batch_size"] == 8
    index = client.get_model_repository_index(**as_dict)
    models = index["models"] if module is GRPC else index
    assert [(m["name"], m["state"]) for m in models] == [("simple", "READY")]


@pytest.mark.parametrize("through_envoy", [False, True])
def test_grpc_inference_direct_and_through_the_gateway(
    stack: Stack, through_envoy: bool
) -> None:
    address = url(stack, GRPC, through_envoy=through_envoy)
    with GRPC.InferenceServerClient(address) as client:
        result = client.infer("simple", inputs(GRPC), request_id="17")
        assert_right(result)
        assert result.get_response().id == "17"
        assert result.get_response().model_version == "1"


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [(True, True), (True, False), (False, False)])
def test_http_inference_with_json_and_binary_mixed(
    stack: Stack, binary_in: bool, binary_out: tuple[bool, bool]
) -> None:
    outputs = [
        HTTP.InferRequestedOutput(f"OUTPUT{i}", binary_data=binary)
        for i, binary in enumerate(binary_out)
    ]
    with HTTP.InferenceServerClient(url(stack, HTTP)) as client:
        result = client.infer(
            "simple",
            inputs(HTTP, binary_data=binary_in),
            outputs=outputs,
            request_id="r7",
        )
        assert_right(result)
        assert result.get_response()["id"] == "r7"


@pytest.mark.parametrize("request_algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_algorithm", [None, "gzip", "deflate"])
def test_http_bodies_may_be_compressed_both_ways(
    stack: Stack, request_algorithm: str | None, response_algorithm: str | None
) -> None:
    with HTTP.InferenceServerClient(url(stack, HTTP)) as client:
        result = client.infer(
            "simple",
            inputs(HTTP),
            request_compression_algorithm=request_algorithm,
            response_compression_algorithm=response_algorithm,
        )
        assert_right(result)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_grpc_messages_may_be_compressed(stack: Stack, algorithm: str) -> None:
    with GRPC.InferenceServerClient(url(stack, GRPC)) as client:
        result = client.infer("simple", inputs(GRPC), compression_algorithm=algorithm)
        assert_right(result)


@pytest.mark.parametrize("module", [HTTP, GRPC])
def test_only_the_requested_outputs_come(stack: Stack, module: Any) -> None:  # noqa: ANN401
    with module.InferenceServerClient(url(stack, module)) as client:
        wanted = [module.InferRequestedOutput("OUTPUT1")]
        result = client.infer("simple", inputs(module), outputs=wanted)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), FIRST - SECOND)
        assert result.as_numpy("OUTPUT0") is None


async def test_grpc_aio(stack: Stack) -> None:
    async with tritonclient.grpc.aio.InferenceServerClient(url(stack, GRPC)) as client:
        assert await client.is_model_ready("simple")
        results = await asyncio.gather(
            *(client.infer("simple", inputs(GRPC)) for _ in range(20))
        )
        for result in results:
            assert_right(result)


async def test_http_aio(stack: Stack) -> None:
    async with tritonclient.http.aio.InferenceServerClient(url(stack, HTTP)) as client:
        assert await client.is_model_ready("simple")
        results = await asyncio.gather(
            *(client.infer("simple", inputs(HTTP)) for _ in range(20))
        )
        for result in results:
            assert_right(result)


def test_http_async_infer(stack: Stack) -> None:
    address = url(stack, HTTP)
    with HTTP.InferenceServerClient(address, concurrency=4) as client:
        pending = [client.async_infer("simple", inputs(HTTP)) for _ in range(8)]
        for request in pending:
            assert_right(request.get_result())


def test_grpc_async_infer(stack: Stack) -> None:
    done: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    with GRPC.InferenceServerClient(url(stack, GRPC)) as client:
        for _ in range(8):
            client.async_infer(
                "simple", inputs(GRPC), lambda result, error: done.put((result, error))
            )
        for _ in range(8):
            result, error = done.get(timeout=10)
            assert error is None
            assert_right(result)


@pytest.mark.parametrize("through_envoy", [False, True])
def test_a_grpc_stream_answers_good_and_bad_requests_alike(
    stack: Stack, through_envoy: bool
) -> None:
    done: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    address = url(stack, GRPC, through_envoy=through_envoy)
    with GRPC.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: done.put((result, error)))
        client.async_stream_infer("simple", inputs(GRPC), request_id="a")
        client.async_stream_infer("nope", inputs(GRPC), request_id="b")
        client.async_stream_infer("simple", inputs(GRPC), request_id="c")
        outcomes = [done.get(timeout=10) for _ in range(3)]
        client.stop_stream()
    good = {r.get_response().id: r for r, error in outcomes if error is None}
    assert set(good) == {"a", "c"}
    for result in good.values():
        assert_right(result)
    errors = [error for _, error in outcomes if error is not None]
    assert [e.message() for e in errors] == [
        "Request for unknown model: 'nope' is not found"
    ]


def broken(module: Any, name: str) -> Callable[[Any], Any]:  # noqa: ANN401
    """Return a call that breaks one rule."""
    good = inputs(module)
    wrong_name = module.InferInput("NOPE", [2, 16], "INT32")
    wrong_name.set_data_from_numpy(FIRST)
    wrong_type = module.InferInput("INPUT1", [2, 16], "FP32")
    wrong_type.set_data_from_numpy(SECOND.astype(np.float32))
    wrong_shape = module.InferInput("INPUT1", [2, 15], "INT32")
    wrong_shape.set_data_from_numpy(SECOND[:, :15].copy())
    big = []
    for index in (0, 1):
        tensor = module.InferInput(f"INPUT{index}", [9, 16], "INT32")
        tensor.set_data_from_numpy(np.zeros((9, 16), np.int32))
        big.append(tensor)
    calls: dict[str, Callable[[Any], Any]] = {
        "unknown model": lambda c: c.infer("nope", good),
        "unknown version": lambda c: c.infer("simple", good, model_version="9"),
        "wrong input name": lambda c: c.infer("simple", [good[0], wrong_name]),
        "missing input": lambda c: c.infer("simple", good[:1]),
        "wrong dtype": lambda c: c.infer("simple", [good[0], wrong_type]),
        "wrong shape": lambda c: c.infer("simple", [good[0], wrong_shape]),
        "batch above max": lambda c: c.infer("simple", big),
    }
    return calls[name]


@pytest.mark.parametrize("module", [HTTP, GRPC])
@pytest.mark.parametrize(
    ("name", "http_status", "grpc_status", "message"),
    [
        ("unknown model", "404", "NOT_FOUND", "unknown model: 'nope' is not found"),
        ("unknown version", "404", "NOT_FOUND", "'simple' version 9 is not found"),
        ("wrong input name", "400", "INVALID_ARGUMENT", "inference input 'NOPE'"),
        ("missing input", "400", "INVALID_ARGUMENT", "required input(s) ['INPUT1']"),
        ("wrong dtype", "400", "INVALID_ARGUMENT", "data-type is 'FP32'"),
        ("wrong shape", "400", "INVALID_ARGUMENT", "Expected [-1,16], got [2,15]"),
        ("batch above max", "400", "INVALID_ARGUMENT", "batch-size must be <= 8"),
    ],
)
def test_bad_input_gets_its_status_and_its_reason(  # noqa: PLR0917
    stack: Stack,
    module: Any,  # noqa: ANN401
    name: str,
    http_status: str,
    grpc_status: str,
    message: str,
) -> None:
    with module.InferenceServerClient(url(stack, module)) as client:
        with pytest.raises(InferenceServerException) as caught:
            broken(module, name)(client)
        assert message in caught.value.message()
        status = http_status if module is HTTP else f"StatusCode.{grpc_status}"
        assert caught.value.status() == status
        assert_right(client.infer("simple", inputs(module)))
