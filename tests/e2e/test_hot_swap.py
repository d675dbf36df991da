"""Versions that come and go under traffic: nobody notices but by the answers."""

import json
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.support.adder import CONFIG, adder_bytes, place, write_adder
from tests.support.adder_traffic import ask, traffic
from tests.support.eventually import eventually
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(120)

ALL_VERSIONS = CONFIG + "version_policy { all {} }"
OLD, NEW = 10, 20


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_adder(folder, OLD)
    return folder


@pytest.fixture(scope="module")
def stack(repository: Path) -> Iterator[Stack]:
    explicit = "--model-control-mode=explicit"
    with running_stack(repository, explicit) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        yield client
        client.unload_model("adder")


@pytest.fixture
def adder(repository: Path, client: Any) -> Path:  # noqa: ANN401
    """The folder of the adder, which serves version 1 and adds OLD."""
    folder = repository / "adder"
    for name in ("2", "3"):
        if (folder / name).exists():
            (folder / name / "model.onnx").unlink()
            (folder / name).rmdir()
    place(folder / "config.pbtxt", CONFIG.encode())
    place(folder / "1" / "model.onnx", adder_bytes(OLD))
    client.load_model("adder")
    assert ask(client) == OLD
    return folder


def loads_of(stack: Stack, version: int) -> int:
    line = f'"model loaded" model="adder" version={version}'
    return stack.output.count(line)


def test_a_reload_drops_nothing_and_flips_once(
    stack: Stack,
    adder: Path,
    client: Any,  # noqa: ANN401
) -> None:
    with traffic(stack.grpc) as flow:
        place(adder / "1" / "model.onnx", adder_bytes(NEW))
        client.load_model("adder")
        assert ask(client) == NEW  # whoever heard of it gets the new one
        flow.wait_for(20, NEW)
    assert flow.errors == []
    assert flow.flips() == [[OLD, NEW]] * len(flow.answers)


def test_a_new_version_takes_over_without_a_gap(
    stack: Stack,
    adder: Path,
    client: Any,  # noqa: ANN401
) -> None:
    with traffic(stack.grpc) as flow:
        write_adder(adder.parent, NEW, version=2)
        client.load_model("adder")
        assert ask(client) == NEW
        flow.wait_for(20, NEW)
    assert flow.errors == []
    assert flow.flips() == [[OLD, NEW]] * len(flow.answers)
    with pytest.raises(InferenceServerException, match="version 1 is not at ready"):
        ask(client, version="1")


def test_twenty_swaps_in_a_row_drop_nothing(
    stack: Stack,
    adder: Path,
    client: Any,  # noqa: ANN401
) -> None:
    with traffic(stack.grpc) as flow:
        for addend in range(20):
            place(adder / "1" / "model.onnx", adder_bytes(100 + addend))
            client.load_model("adder")
            assert ask(client) == 100 + addend
    assert flow.errors == []
    for told in flow.flips():
        assert told == sorted(told)


def test_a_load_that_fails_leaves_the_old_one_serving(
    stack: Stack,
    adder: Path,
    client: Any,  # noqa: ANN401
) -> None:
    with traffic(stack.grpc) as flow:
        place(adder / "1" / "model.onnx", b"no model")
        with pytest.raises(InferenceServerException, match="load failed for model"):
            client.load_model("adder")
        write_adder(adder.parent, NEW, version=2)
        place(adder / "2" / "model.onnx", b"no model either")
        with pytest.raises(InferenceServerException, match="load failed for model"):
            client.load_model("adder")
        place(adder / "config.pbtxt", b"nonsense")
        with pytest.raises(InferenceServerException, match="failed to poll"):
            client.load_model("adder")
        flow.wait_for(20, OLD)
    assert flow.errors == []
    assert flow.flips() == [[OLD]] * len(flow.answers)


def test_a_version_more_leaves_the_others_alone(
    stack: Stack,
    adder: Path,
    client: Any,  # noqa: ANN401
) -> None:
    place(adder / "config.pbtxt", ALL_VERSIONS.encode())
    client.load_model("adder")
    before = loads_of(stack, 1)
    with traffic(stack.grpc) as flow:
        write_adder(adder.parent, NEW, version=2, config=ALL_VERSIONS)
        client.load_model("adder")
        flow.wait_for(10, NEW)
    assert flow.errors == []
    assert loads_of(stack, 1) == before
    assert (ask(client, version="1"), ask(client, version="2")) == (OLD, NEW)


def test_one_version_can_be_chosen_and_another_added_to_it(
    stack: Stack,
    adder: Path,
    client: Any,  # noqa: ANN401
) -> None:
    write_adder(adder.parent, NEW, version=2)
    client.load_model("adder", config=json.dumps(specific(1)))
    assert ready_versions(client) == {"1"}
    before = loads_of(stack, 1)
    client.load_model("adder", config=json.dumps(specific(1, 2)))
    assert ready_versions(client) == {"1", "2"}
    assert loads_of(stack, 1) == before


def specific(*versions: int) -> dict[str, object]:
    policy = {"specific": {"versions": list(versions)}}
    return {"backend": "onnxruntime", "max_batch_size": 8, "version_policy": policy}


def ready_versions(client: Any) -> set[str]:  # noqa: ANN401
    index = client.get_model_repository_index()
    return {
        each.version
        for each in index.models
        if (each.name, each.state) == ("adder", "READY")
    }


def test_more_instances_are_no_reason_to_drop_a_request(
    stack: Stack,
    adder: Path,
    client: Any,  # noqa: ANN401
) -> None:
    with traffic(stack.grpc) as flow:
        more = CONFIG.replace("count: 1", "count: 3")
        place(adder / "config.pbtxt", more.encode())
        client.load_model("adder")
        flow.wait_for(10, OLD)
    assert flow.errors == []
    config = client.get_model_config("adder", as_json=True)["config"]
    assert config["instance_group"][0]["count"] == 3


COUNTING = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        process = pb_utils.Tensor("Y", np.full((1, 4), os.getpid(), np.int32))
        return [pb_utils.InferenceResponse([process]) for _ in requests]
"""


def test_an_instance_lives_on_when_others_join_it(
    repository: Path,
    client: Any,  # noqa: ANN401
) -> None:
    folder = repository / "counting"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("import numpy as np\n" + COUNTING)
    python = CONFIG.replace("onnxruntime", "python")
    (folder / "config.pbtxt").write_text(python)
    client.load_model("counting")
    first = ask(client, "counting")
    place(folder / "config.pbtxt", python.replace("count: 1", "count: 2").encode())
    client.load_model("counting")
    assert Path(f"/proc/{first}").exists()
    place(folder / "config.pbtxt", python.encode())
    client.load_model("counting")
    assert {ask(client, "counting") for _ in range(5)} == {first}
    client.unload_model("counting")


def test_an_identical_load_loads_nothing(
    stack: Stack,
    adder: Path,
    client: Any,  # noqa: ANN401
) -> None:
    assert adder.is_dir()
    before = loads_of(stack, 1)
    for _ in range(3):
        client.load_model("adder")
    assert loads_of(stack, 1) == before


def test_files_of_a_request_replace_those_of_the_repository(
    stack: Stack,
    adder: Path,
    client: Any,  # noqa: ANN401
) -> None:
    assert adder.is_dir()
    config = json.dumps({"backend": "onnxruntime", "max_batch_size": 8})
    with traffic(stack.grpc) as flow:
        files = {"file:1/model.onnx": adder_bytes(NEW)}
        client.load_model("adder", config=config, files=files)
        assert ask(client) == NEW
        flow.wait_for(10, NEW)
        client.load_model("adder")
        assert ask(client) == OLD
    assert flow.errors == []


SLOW = """
import pathlib
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        pathlib.Path(__file__).with_name("begun").touch()
        time.sleep(1.0)
        return [
            pb_utils.InferenceResponse([
                pb_utils.Tensor(
                    "Y", pb_utils.get_input_tensor_by_name(each, "X").as_numpy() + 7
                )
            ])
            for each in requests
        ]
"""


def test_a_request_in_flight_ends_on_the_version_it_began_with(
    stack: Stack,
    repository: Path,
    client: Any,  # noqa: ANN401
) -> None:
    folder = repository / "slow"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(textwrap.dedent(SLOW))
    python = CONFIG.replace("onnxruntime", "python")
    (folder / "config.pbtxt").write_text(python)
    client.load_model("slow")
    answers: list[int] = []

    def infer() -> None:
        with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as own:
            answers.append(ask(own, "slow"))

    asking = threading.Thread(target=infer)
    asking.start()
    eventually((folder / "1" / "begun").exists)
    client.unload_model("slow")
    with pytest.raises(InferenceServerException, match="has no available versions"):
        ask(client, "slow")
    asking.join()
    assert answers == [7]


def test_polling_swaps_without_a_gap(tmp_path: Path) -> None:
    folder = write_adder(tmp_path, OLD)
    poll = "--model-control-mode=poll", "--repository-poll-secs=1"
    with running_stack(tmp_path, *poll) as stack:
        with traffic(stack.grpc) as flow:
            write_adder(tmp_path, NEW, version=2)
            flow.wait_for(10, NEW)
            place(folder / "2" / "model.onnx", b"no model")
            stack.wait_for_text("failed to load a model")
            place(folder / "2" / "model.onnx", adder_bytes(NEW + 1))
            flow.wait_for(10, NEW + 1)
        assert flow.errors == []
        assert flow.flips() == [[OLD, NEW, NEW + 1]] * len(flow.answers)
