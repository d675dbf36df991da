"""Who decides what is loaded, and what that does to readiness."""

import contextlib
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.support.adder import CONFIG, adder_bytes, place, write_adder
from tests.support.adder_traffic import ask
from tests.support.eventually import eventually
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(120)

REFUSAL = "explicit model load / unload is not allowed if polling is enabled"


def status(stack: Stack, path: str, body: object = None) -> tuple[int, Any]:
    """Return HTTP status and document of a POST if there is a body, else of a GET."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{stack.http}/v2/{path}", data=data
    )
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            text, code = answer.read(), answer.status
    except urllib.error.HTTPError as error:
        text, code = error.read(), error.code
    return code, json.loads(text) if text else None


def index(stack: Stack) -> dict[str, str]:
    _, entries = status(stack, "repository/index", {})
    return {each["name"]: each.get("state", "") for each in entries}


Served = tuple[Stack, Path, Any]


@pytest.fixture(scope="module")
def explicit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two models, loaded at the start, one of them by another configuration."""
    folder = tmp_path_factory.mktemp("explicit")
    small = CONFIG.replace("max_batch_size: 8", "max_batch_size: 2")
    for addend, name in enumerate(("one", "two")):
        write_adder(folder, addend, name=name)
    (folder / "two" / "configs").mkdir()
    place(folder / "two" / "configs" / "small.pbtxt", small.encode())
    mode = "--model-control-mode=explicit"
    with served(folder, mode, "--load-model=*", "--model-config-name=small") as it:
        yield it


@pytest.fixture(scope="module")
def polled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One model, and a look at the repository every second."""
    folder = tmp_path_factory.mktemp("polled")
    write_adder(folder, 1, name="one")
    mode = "--model-control-mode=poll"
    with served(folder, mode, "--repository-poll-secs=1") as it:
        yield it


@contextlib.contextmanager
def served(folder: Path, *flags: str) -> Iterator[Served]:
    with (
        running_stack(folder, *flags) as stack,
        triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client,
    ):
        yield stack, folder, client


def test_every_model_is_loaded_with_the_configuration_that_was_chosen(
    explicit: Served,
) -> None:
    stack, _, _ = explicit
    assert index(stack) == {"one": "READY", "two": "READY"}
    sizes = [status(stack, f"models/{name}/config")[1] for name in ("one", "two")]
    assert [each["max_batch_size"] for each in sizes] == [8, 2]


def test_an_unload_leaves_the_server_ready(explicit: Served) -> None:
    stack, _, client = explicit
    client.unload_model("one")
    assert status(stack, "health/ready")[0] == 200
    assert status(stack, "models/one/ready")[0] == 400
    assert index(stack)["two"] == "READY"
    client.load_model("one")
    assert status(stack, "models/one/ready")[0] == 200


def test_a_failed_load_makes_it_unready_until_it_is_unloaded(explicit: Served) -> None:
    stack, repository, client = explicit
    write_adder(repository, 5, name="broken")
    place(repository / "broken" / "1" / "model.onnx", b"no model")
    with pytest.raises(InferenceServerException, match="load failed for model"):
        client.load_model("broken")
    assert status(stack, "health/ready")[0] == 400
    assert ask(client, "two") == 1
    client.unload_model("broken")
    assert status(stack, "health/ready")[0] == 200


def test_a_repository_cannot_be_named(explicit: Served) -> None:
    stack, _, _ = explicit
    for path in ("index", "models/one/load", "models/one/unload"):
        code, answer = status(stack, f"repository/mine/{path}", {})
        text = "'repository_name' specification is not supported"
        assert (code, answer) == (501, {"error": text})


def test_while_polling_nobody_loads_by_hand(polled: Served) -> None:
    stack, _, _ = polled
    for action in ("load", "unload"):
        answer = status(stack, f"repository/models/one/{action}", {})
        assert answer == (503, {"error": REFUSAL})


def test_while_polling_models_come_change_and_go(polled: Served) -> None:
    stack, repository, client = polled
    write_adder(repository, 2, name="two")
    eventually(lambda: client.is_model_ready("two"))
    assert index(stack)["two"] == "READY"
    place(repository / "two" / "1" / "model.onnx", adder_bytes(3))
    eventually(lambda: ask(client, "two") == 3)
    place(repository / "two" / "config.pbtxt", b"nonsense")
    stack.wait_for_text("a model was refused")
    assert ask(client, "two") == 3
    shutil.rmtree(repository / "two")
    eventually(lambda: not client.is_model_ready("two"))
    assert ask(client, "one") == 1


def test_readiness_need_not_be_strict(tmp_path: Path) -> None:
    write_adder(tmp_path, 1, name="good")
    write_adder(tmp_path, 1, name="bad")
    place(tmp_path / "bad" / "1" / "model.onnx", b"no model")
    flags = "--exit-on-error=false", "--strict-readiness=false"
    with running_stack(tmp_path, *flags) as stack:
        assert status(stack, "health/ready")[0] == 200
        assert index(stack) == {"bad": "UNAVAILABLE", "good": "READY"}
        assert status(stack, "models/bad/ready")[0] == 400
