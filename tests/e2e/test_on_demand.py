"""Models that are loaded when somebody asks for them, within a memory budget."""

import contextlib
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.support.adder import CONFIG, write_adder
from tests.support.adder_traffic import ask
from tests.support.eventually import eventually
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(180)

PATIENCE_S = 30.0
MIB = 1 << 20
PINNED = CONFIG + 'parameters { key: "nereid_pinned" value { string_value: "true" } }\n'
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "X" data_type: TYPE_INT32 dims: 4 }
output { name: "Y" data_type: TYPE_INT32 dims: 4 }
ensemble_scheduling {
  step { model_name: "c" input_map { key: "X" value: "X" }
         output_map { key: "Y" value: "Z" } }
  step { model_name: "d" input_map { key: "X" value: "Z" }
         output_map { key: "Y" value: "Y" } }
}
"""
SLEEPER = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            time.sleep(float(value.max()) / 1000)
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("Y", value)])
            )
        return responses
"""


def write_large(
    folder: Path, name: str, addend: int, mib: int, config: str = CONFIG
) -> None:
    """Write an adder with a file beside it, so that it counts for so many MiB."""
    model = write_adder(folder, addend, name=name, config=config)
    with (model / "1" / "weights.bin").open("wb") as file:
        file.truncate(mib * MIB)


def write_ensemble(folder: Path) -> None:
    model = folder / "both"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(ENSEMBLE)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Serve models of 300 MiB, of which three fit."""
    folder = tmp_path_factory.mktemp("models")
    for addend, name in enumerate("abcd", start=1):
        write_large(folder, name, addend, 300)
    write_large(folder, "pinned", 9, 300, PINNED)
    write_large(folder, "giant", 1, 1100)
    write_large(folder, "broken", 1, 1)
    (folder / "broken" / "1" / "model.onnx").write_bytes(b"nonsense")
    write_ensemble(folder)
    with running_stack(
        folder,
        "--model-control-mode=on-demand",
        "--model-memory-budget=1000MiB",
        "--load-model=pinned",
    ) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        yield client


def ready(client: Any) -> set[str]:  # noqa: ANN401
    index = client.get_model_repository_index().models
    return {each.name for each in index if each.state == "READY"}


def metric(stack: Stack, series: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.metrics}/metrics") as page:
        lines = page.read().decode().splitlines()
    found = [line for line in lines if line.startswith(series + " ")]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


def ask_over_rest(stack: Stack, model: str) -> int:
    with triton_http.InferenceServerClient(
        f"127.0.0.1:{stack.http}", network_timeout=PATIENCE_S
    ) as client:
        tensor = triton_http.InferInput("X", [1, 4], "INT32")
        tensor.set_data_from_numpy(np.zeros((1, 4), np.int32))
        return int(client.infer(model, [tensor]).as_numpy("Y")[0, 0])


def test_only_what_is_named_is_loaded_at_the_start(client: Any) -> None:  # noqa: ANN401
    assert "pinned" in ready(client)
    assert client.is_server_ready()
    assert not client.is_model_ready("giant")


def test_who_asks_for_a_model_waits_until_it_is_loaded_over_both_protocols(
    stack: Stack,
    client: Any,  # noqa: ANN401
) -> None:
    assert ask(client, "a") == 1
    assert ask_over_rest(stack, "b") == 2
    assert {"a", "b", "pinned"} <= ready(client)
    assert metric(stack, 'nereid_model_demand_loads_total{model="b"}') >= 1
    eventually(lambda: metric(stack, 'nereid_model_waits_total{model="b"}') >= 1)


def test_the_model_used_longest_ago_makes_room_and_the_pinned_one_never(
    stack: Stack,
    client: Any,  # noqa: ANN401
) -> None:
    for model, addend in (("a", 1), ("b", 2), ("a", 1), ("c", 3)):
        assert ask(client, model) == addend
    assert ready(client) == {"a", "c", "pinned"}
    evictions = metric(stack, 'nereid_model_evictions_total{model="b"}')
    assert evictions >= 1
    assert ask(client, "b") == 2
    assert "pinned" in ready(client)
    assert metric(stack, "nereid_model_memory_resident_bytes") <= 1000 * MIB
    assert metric(stack, "nereid_model_memory_budget_bytes") == 1000 * MIB


def test_many_who_ask_for_more_than_fits_all_get_their_answers(
    stack: Stack,
    client: Any,  # noqa: ANN401
) -> None:
    models = [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    over = threading.Event()
    sizes: list[float] = []

    def watch() -> None:
        while not over.wait(0.05):
            sizes.append(metric(stack, "nereid_model_memory_resident_bytes"))

    def ask_all(turn: int) -> list[bool]:
        turned = models[turn % 4 :] + models[: turn % 4]
        return [ask(client, model) == addend for model, addend in turned]

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask_all, range(8)))
    over.set()
    watcher.join()
    assert all(all(each) for each in answers)
    assert max(sizes) <= 1000 * MIB


def test_an_ensemble_brings_what_it_is_made_of(
    stack: Stack,
    client: Any,  # noqa: ANN401
) -> None:
    assert ask_over_rest(stack, "a") == 1
    assert ask(client, "both") == 7
    assert ready(client) == {"both", "c", "d", "pinned"}
    assert ask(client, "a") == 1
    assert ask(client, "both") == 7


def test_what_can_never_fit_is_refused_with_the_reason(
    stack: Stack,
    client: Any,  # noqa: ANN401
) -> None:
    with pytest.raises(InferenceServerException, match="the memory budget is") as error:
        ask(client, "giant")
    assert error.value.status() == "StatusCode.UNAVAILABLE"
    with pytest.raises(InferenceServerException, match="the memory budget is"):
        ask_over_rest(stack, "giant")


def test_a_model_that_does_not_load_refuses_those_who_wait(
    client: Any,  # noqa: ANN401
) -> None:
    with pytest.raises(InferenceServerException, match="load failed for model"):
        ask(client, "broken")


def test_a_model_that_nobody_has_is_unknown_at_once(
    client: Any,  # noqa: ANN401
) -> None:
    with pytest.raises(InferenceServerException, match="unknown model: 'nope'"):
        ask(client, "nope")


def test_clients_may_load_and_unload_ahead(client: Any) -> None:  # noqa: ANN401
    client.unload_model("a")
    assert "a" not in ready(client)
    client.load_model("a")
    assert "a" in ready(client)
    with pytest.raises(InferenceServerException, match="the memory budget is"):
        client.load_model("giant")


def test_a_deadline_holds_while_a_model_cannot_be_loaded(tmp_path: Path) -> None:
    model = tmp_path / "sleeper"
    config = CONFIG.replace("onnxruntime", "python")
    write_adder(tmp_path, 1, name="sleeper", config=config)
    (model / "1" / "model.onnx").unlink()
    (model / "1" / "model.py").write_text(SLEEPER)
    with (model / "1" / "weights.bin").open("wb") as file:
        file.truncate(600 * MIB)
    write_large(tmp_path, "other", 5, 600)
    with (
        running_stack(
            tmp_path,
            "--model-control-mode=on-demand",
            "--model-memory-budget=1000MiB",
        ) as stack,
        triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client,
    ):
        tensor = triton.InferInput("X", [1, 4], "INT32")
        tensor.set_data_from_numpy(np.full((1, 4), 4000, np.int32))
        answered = threading.Event()
        client.async_infer("sleeper", [tensor], lambda **_: answered.set())
        eventually(lambda: ready(client) == {"sleeper"})
        # It is in use for four seconds: nothing else fits beside it.
        tensor.set_data_from_numpy(np.zeros((1, 4), np.int32))
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            client.infer("other", [tensor], client_timeout=0.5)
        with pytest.raises(InferenceServerException, match="timeout expired"):
            client.infer("other", [tensor], timeout=300_000)
        assert not answered.is_set()
        assert ask(client, "other") == 5  # once the sleeper is idle
        assert answered.is_set()
        with contextlib.suppress(InferenceServerException):
            client.unload_model("other")
