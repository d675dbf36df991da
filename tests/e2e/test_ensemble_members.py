"""Members that come, change and go while their ensemble is in use."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.support.ensemble_models import write_add_sub, write_ensemble
from tests.support.eventually import eventually
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(180)

CLIENTS = 16
RELOADS = 4


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    write_add_sub(root, "add")
    write_ensemble(
        root,
        "chain",
        [
            ("add", {"INPUT0": "A", "INPUT1": "A"}, {"OUTPUT0": "T"}),
            ("add", {"INPUT0": "T", "INPUT1": "A"}, {"OUTPUT0": "Z"}),
        ],
        extra="response_cache { enable: true }",
    )
    return root


@pytest.fixture
def stack(repository: Path) -> Iterator[Stack]:
    flags = ("--model-control-mode=explicit", "--load-model=chain")
    with running_stack(repository, *flags, "--cache-config=local,size=65536") as stack:
        yield stack


@pytest.fixture
def grpc(stack: Stack) -> Iterator[Any]:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        yield client


def inputs(value: int) -> list[Any]:
    tensor = triton_grpc.InferInput("A", [1, 16], "INT32")
    tensor.set_data_from_numpy(np.full((1, 16), value, dtype=np.int32))
    return [tensor]


def states(client: Any) -> dict[str, tuple[str, str]]:  # noqa: ANN401
    index = client.get_model_repository_index().models
    return {each.name: (each.state, each.reason) for each in index}


def test_reloads_of_a_member_cost_no_request(stack: Stack, repository: Path) -> None:
    answered = asyncio.run(_reload_under_load(stack, repository))
    assert answered > CLIENTS


async def _reload_under_load(stack: Stack, repository: Path) -> int:
    reloaded = asyncio.Event()

    async def client_loop(client: Any, number: int) -> int:  # noqa: ANN401
        answered = 0
        while not reloaded.is_set():
            value = number * 100_000 + answered
            result = await client.infer("chain", inputs(value))
            assert (result.as_numpy("Z") == 3 * value).all()
            answered += 1
        return answered

    url = f"127.0.0.1:{stack.grpc}"
    async with (
        triton_aio.InferenceServerClient(url) as client,
        asyncio.TaskGroup() as tasks,
    ):
        loops = [tasks.create_task(client_loop(client, i)) for i in range(CLIENTS)]
        for i in range(RELOADS):
            os.utime(repository / "add" / "1" / "model.onnx", (i, i))
            await client.load_model("add")
        reloaded.set()
    return sum(loop.result() for loop in loops)


def test_members_come_and_go_with_their_ensemble(grpc: Any) -> None:  # noqa: ANN401
    assert states(grpc)["add"] == ("READY", "")
    grpc.infer("chain", inputs(1))
    grpc.unload_model("chain", unload_dependents=True)
    gone = ("UNAVAILABLE", "unloaded")
    eventually(lambda: states(grpc) == {"chain": gone, "add": gone})
    grpc.load_model("chain")
    grpc.infer("chain", inputs(1))
    assert states(grpc) == {"chain": ("READY", ""), "add": ("READY", "")}
    grpc.unload_model("add")
    with pytest.raises(InferenceServerException, match="no available versions"):
        grpc.infer("chain", inputs(2))
    assert states(grpc)["chain"] == (
        "UNAVAILABLE",
        "ensemble 'chain' depends on 'add' which has no loaded version",
    )
    grpc.load_model("add")
    grpc.infer("chain", inputs(2))


def test_a_cached_ensemble_asks_its_members_once(grpc: Any) -> None:  # noqa: ANN401
    answers = [
        grpc.infer("chain", inputs(7), request_id=name) for name in ("one", "two")
    ]
    assert [each.get_response().id for each in answers] == ["one", "two"]
    for each in answers:
        assert (each.as_numpy("Z") == 21).all()
    counted = {
        name: grpc.get_inference_statistics(name).model_stats[0]
        for name in ("chain", "add")
    }
    assert counted["add"].inference_count == 2
    assert counted["chain"].inference_count == 1
    stats = counted["chain"].inference_stats
    assert (stats.cache_hit.count, stats.cache_miss.count) == (1, 1)
    assert stats.success.count == 2
