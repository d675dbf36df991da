"""Ensembles from outside: real clients, a real stack, ONNX and Python members."""

import asyncio
import json
import os
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_aio
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException, shared_memory

from tests.support.ensemble_models import (
    write_add_sub,
    write_count,
    write_ensemble,
    write_plus,
    write_sum,
)
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(240)

CLIENTS = 128
# Longer by hand; see docs/ensembles.md.
LOAD_SECONDS = float(os.environ.get("NEREID_LOAD_SECONDS", "10"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ensembles")
    write_add_sub(root, "add")
    write_plus(root, "plus")
    write_count(root, "count")
    write_sum(root, "sum")
    # Twice each response, plus A.
    write_ensemble(
        root,
        "counted",
        [
            ("count", {"INPUT0": "A"}, {"OUTPUT0": "C"}),
            ("add", {"INPUT0": "C", "INPUT1": "C"}, {"OUTPUT0": "D"}),
            ("plus", {"INPUT0": "D", "INPUT1": "A"}, {"OUTPUT0": "Z"}),
        ],
    )
    # The same, and its configuration says that it may respond several times.
    write_ensemble(
        root,
        "declared",
        [("count", {"INPUT0": "A"}, {"OUTPUT0": "Z"})],
        extra="model_transaction_policy { decoupled: true }",
    )
    # Twice the sum so far.
    write_ensemble(
        root,
        "summed",
        [
            ("sum", {"INPUT0": "A"}, {"OUTPUT0": "S"}),
            ("add", {"INPUT0": "S", "INPUT1": "S"}, {"OUTPUT0": "Z"}),
        ],
    )
    # The answer is A plus twice B.
    write_ensemble(
        root,
        "chain",
        [
            ("plus", {"INPUT0": "C", "INPUT1": "B"}, {"OUTPUT0": "Z"}),
            ("add", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "C"}),
        ],
        inputs="AB",
    )
    # The branches are thrice A and A.
    write_ensemble(
        root,
        "diamond",
        [
            ("add", {"INPUT0": "A", "INPUT1": "A"}, {"OUTPUT0": "T"}),
            ("add", {"INPUT0": "T", "INPUT1": "A"}, {"OUTPUT0": "L"}),
            ("add", {"INPUT0": "T", "INPUT1": "A"}, {"OUTPUT1": "R"}),
            ("add", {"INPUT0": "L", "INPUT1": "R"}, {"OUTPUT0": "Z"}),
        ],
    )
    # Nothing, and twice A plus B.
    write_ensemble(
        root,
        "two",
        [
            ("add", {"INPUT0": "A", "INPUT1": "A"}, {"OUTPUT0": "S", "OUTPUT1": "Y"}),
            ("plus", {"INPUT0": "S", "INPUT1": "B"}, {"OUTPUT0": "Z"}),
        ],
        inputs="AB",
        outputs="YZ",
        optional="B",
    )
    # Twice the diamond.
    write_ensemble(
        root,
        "nested",
        [
            ("diamond", {"A": "A"}, {"Z": "M"}),
            ("add", {"INPUT0": "M", "INPUT1": "M"}, {"OUTPUT0": "Z"}),
        ],
    )
    write_ensemble(
        root, "lonely", [("absent", {"INPUT0": "A"}, {"OUTPUT0": "Z"})], inputs="A"
    )
    return root


@pytest.fixture(scope="module")
def stack(repository: Path) -> Iterator[Stack]:
    flags = ("--exit-on-error=false", "--strict-readiness=false")
    with running_stack(repository, *flags, "--allow-client-shm=true") as running:
        yield running


@pytest.fixture
def grpc(stack: Stack) -> Iterator[Any]:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        yield client


@pytest.fixture
def http(stack: Stack) -> Iterator[Any]:
    with triton_http.InferenceServerClient(f"127.0.0.1:{stack.http}") as client:
        yield client


def numbers(value: int, rows: int = 1) -> np.ndarray:
    return np.full((rows, 16), value, dtype=np.int32)


def inputs(module: Any, **arrays: np.ndarray) -> list[Any]:  # noqa: ANN401
    tensors = []
    for name, array in arrays.items():
        tensor = module.InferInput(name, list(array.shape), "INT32")
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


@pytest.mark.parametrize("rows", [1, 8])
def test_a_chain_over_two_backends(grpc: Any, rows: int) -> None:  # noqa: ANN401
    sent = inputs(triton_grpc, A=numbers(3, rows), B=numbers(4, rows))
    result = grpc.infer("chain", sent, request_id="seven")
    np.testing.assert_array_equal(result.as_numpy("Z"), numbers(11, rows))
    assert result.get_response().id == "seven"
    assert result.get_response().model_name == "chain"


def test_a_chain_over_rest(http: Any) -> None:  # noqa: ANN401
    sent = inputs(triton_http, A=numbers(3), B=numbers(4))
    np.testing.assert_array_equal(http.infer("chain", sent).as_numpy("Z"), numbers(11))


@pytest.mark.parametrize(("model", "factor"), [("diamond", 4), ("nested", 8)])
def test_branches_meet_again(grpc: Any, model: str, factor: int) -> None:  # noqa: ANN401
    result = grpc.infer(model, inputs(triton_grpc, A=numbers(5)))
    np.testing.assert_array_equal(result.as_numpy("Z"), numbers(5 * factor))


def test_a_stream_of_ensembles(stack: Stack) -> None:
    results: SimpleQueue[Any] = SimpleQueue()
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        for i in range(20):
            sent = inputs(triton_grpc, A=numbers(i))
            client.async_stream_infer("diamond", sent, request_id=str(i))
        answers = [results.get(timeout=30) for _ in range(20)]
        client.stop_stream()
    assert not [error for _, error in answers if error]
    for result, _ in answers:
        value = 4 * int(result.get_response().id)
        np.testing.assert_array_equal(result.as_numpy("Z"), numbers(value))


def streamed(stack: Stack, model: str, value: int) -> list[Any]:
    """Return what a stream brings for one request, up to the final response."""
    results: SimpleQueue[Any] = SimpleQueue()
    found = []
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        client.start_stream(lambda result, error: results.put(error or result))
        client.async_stream_infer(
            model,
            inputs(triton_grpc, A=numbers(value)),
            enable_empty_final_response=True,
        )
        while True:
            found.append(results.get(timeout=30))
            if isinstance(found[-1], InferenceServerException):
                break
            parameters = found[-1].get_response().parameters
            if parameters["triton_final_response"].bool_param:
                break
        client.stop_stream()
    return found


@pytest.mark.parametrize("count", [0, 1, 20])
def test_each_response_of_a_decoupled_step_is_one_of_the_ensemble(
    stack: Stack, count: int
) -> None:
    *responses, final = streamed(stack, "counted", count)
    values = [int(each.as_numpy("Z").flat[0]) for each in responses]
    assert values == [2 * i + count for i in range(count)]
    assert not final.get_response().outputs


def test_an_ensemble_may_say_itself_that_it_is_decoupled(stack: Stack) -> None:
    *responses, final = streamed(stack, "declared", 3)
    assert [int(each.as_numpy("Z").flat[0]) for each in responses] == [0, 1, 2]
    assert not final.get_response().outputs
    url = f"http://127.0.0.1:{stack.http}/v2/models/declared/config"
    with urllib.request.urlopen(url, timeout=30) as answer:
        policy = json.load(answer)["model_transaction_policy"]
    assert policy == {"decoupled": True}


def test_the_error_of_a_decoupled_step_ends_the_request(stack: Stack) -> None:
    found = streamed(stack, "counted", -1)
    assert found[-1].message() == "in ensemble 'counted', negative"


def test_an_ensemble_with_a_decoupled_step_wants_a_stream(grpc: Any) -> None:  # noqa: ANN401
    with pytest.raises(InferenceServerException, match="decoupled transaction policy"):
        grpc.infer("counted", inputs(triton_grpc, A=numbers(1)))


def test_generate_stream_gives_the_responses_of_a_decoupled_step(stack: Stack) -> None:
    url = f"http://127.0.0.1:{stack.http}/v2/models/counted/generate_stream"
    body = json.dumps({"A": [3] * 16}).encode()
    with urllib.request.urlopen(url, body, timeout=30) as answer:
        lines = [line for line in answer.read().splitlines() if line]
    events = [json.loads(line.removeprefix(b"data: ")) for line in lines]
    assert [event["Z"][0] for event in events] == [3, 5, 7]


def test_tensors_of_an_ensemble_may_be_in_shared_memory(grpc: Any) -> None:  # noqa: ANN401
    name = f"ensembles_{uuid.uuid4().hex}"
    region = shared_memory.create_shared_memory_region(name, f"/{name}", 128)
    try:
        shared_memory.set_shared_memory_region(region, [numbers(5)])
        grpc.register_system_shared_memory(name, f"/{name}", 128)
        sent = triton_grpc.InferInput("A", [1, 16], "INT32")
        sent.set_shared_memory(name, 64)
        wanted = triton_grpc.InferRequestedOutput("Z")
        wanted.set_shared_memory(name, 64, 64)
        grpc.infer("diamond", [sent], outputs=[wanted])
        found = shared_memory.get_contents_as_numpy(region, np.int32, [1, 16], 64)
        np.testing.assert_array_equal(found, numbers(20))
        grpc.unregister_system_shared_memory(name)
    finally:
        shared_memory.destroy_shared_memory_region(region)


def test_sequences_go_through_ensembles_each_on_its_own(stack: Stack) -> None:
    async def sequence(client: Any, number: int) -> None:  # noqa: ANN401
        for i in range(1, 6):
            result = await client.infer(
                "summed",
                inputs(triton_grpc, A=numbers(number)),
                sequence_id=number,
                sequence_start=i == 1,
                sequence_end=i == 5,
            )
            np.testing.assert_array_equal(result.as_numpy("Z"), numbers(2 * number * i))

    async def all_sequences() -> None:
        url = f"127.0.0.1:{stack.grpc}"
        async with (
            triton_aio.InferenceServerClient(url) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(1, 21):
                tasks.create_task(sequence(client, number))

    asyncio.run(all_sequences())


@pytest.mark.parametrize(("given", "value"), [({}, 106), ({"B": numbers(4)}, 10)])
def test_an_optional_input_is_passed_on_or_left_out(
    grpc: Any,  # noqa: ANN401
    given: dict[str, np.ndarray],
    value: int,
) -> None:
    result = grpc.infer("two", inputs(triton_grpc, A=numbers(3), **given))
    np.testing.assert_array_equal(result.as_numpy("Y"), numbers(0))
    np.testing.assert_array_equal(result.as_numpy("Z"), numbers(value))


def test_only_the_outputs_asked_for_come_back(grpc: Any) -> None:  # noqa: ANN401
    executed = executions(grpc, "plus")
    wanted = [triton_grpc.InferRequestedOutput("Y")]
    sent = inputs(triton_grpc, A=numbers(3))
    result = grpc.infer("two", sent, outputs=wanted)
    assert [output.name for output in result.get_response().outputs] == ["Y"]
    assert executions(grpc, "plus") == executed


def executions(client: Any, model: str) -> int:  # noqa: ANN401
    statistics = client.get_inference_statistics(model)
    return int(statistics.model_stats[0].execution_count)


def test_the_error_of_a_member_is_the_ensembles(grpc: Any, http: Any) -> None:  # noqa: ANN401
    for module, client in ((triton_grpc, grpc), (triton_http, http)):
        sent = inputs(module, A=numbers(-3), B=numbers(1))
        with pytest.raises(InferenceServerException) as caught:
            client.infer("chain", sent)
        assert caught.value.message() == "in ensemble 'chain', negative"


def test_what_the_ensemble_does_not_take_is_refused_by_the_ensemble(
    grpc: Any,  # noqa: ANN401
) -> None:
    sent = inputs(triton_grpc, A=numbers(1, rows=9))
    with pytest.raises(InferenceServerException, match="batch-size must be <= 8 for"):
        grpc.infer("diamond", sent)


def test_an_ensemble_describes_itself_and_counts(grpc: Any) -> None:  # noqa: ANN401
    assert grpc.is_model_ready("diamond")
    metadata = grpc.get_model_metadata("diamond")
    assert metadata.platform == "ensemble"
    assert [list(each.shape) for each in metadata.inputs] == [[-1, 16]]
    config = grpc.get_model_config("diamond").config
    assert len(config.ensemble_scheduling.step) == 4
    before = grpc.get_inference_statistics("diamond").model_stats[0]
    members = executions(grpc, "add")
    grpc.infer("diamond", inputs(triton_grpc, A=numbers(1, rows=3)))
    after = grpc.get_inference_statistics("diamond").model_stats[0]
    assert after.inference_count - before.inference_count == 3
    assert after.execution_count - before.execution_count == 1
    success = after.inference_stats.success
    assert success.count - before.inference_stats.success.count == 1
    # Both branches may have shared an execution.
    assert executions(grpc, "add") - members in (3, 4)


def test_an_ensemble_without_its_member_is_unavailable(grpc: Any) -> None:  # noqa: ANN401
    assert not grpc.is_model_ready("lonely")
    states = {each.name: each for each in grpc.get_model_repository_index().models}
    assert states["lonely"].state == "UNAVAILABLE"
    assert states["lonely"].reason == (
        "ensemble lonely contains models that are not available or ambiguous: absent"
    )


def test_diamonds_under_load_all_come_right(stack: Stack) -> None:
    answered = asyncio.run(_load(f"127.0.0.1:{stack.grpc}"))
    assert answered > CLIENTS


async def _load(url: str) -> int:
    """Return how many requests were answered; raises on the first wrong one."""
    ends_at = time.monotonic() + LOAD_SECONDS

    async def client_loop(client: Any, number: int) -> int:  # noqa: ANN401
        answered = 0
        while time.monotonic() < ends_at:
            value = (number * 1000 + answered) % 100_000
            sent = inputs(triton_grpc, A=numbers(value, rows=1 + number % 3))
            result = await client.infer("diamond", sent)
            assert (result.as_numpy("Z") == 4 * value).all()
            answered += 1
        return answered

    async with (
        triton_aio.InferenceServerClient(url) as client,
        asyncio.TaskGroup() as tasks,
    ):
        loops = [tasks.create_task(client_loop(client, i)) for i in range(CLIENTS)]
    return sum(loop.result() for loop in loops)
