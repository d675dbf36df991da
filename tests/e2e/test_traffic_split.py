"""Requests without a version, shared out between versions at run time."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.support.adder import CONFIG, write_adder
from tests.support.adder_traffic import ask
from tests.support.eventually import eventually
from tests.support.stack import ROOT, Stack, running_stack

pytestmark = pytest.mark.timeout(120)

ALL_VERSIONS = CONFIG + "version_policy { all {} }"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("models")
    for version in (1, 2):
        write_adder(folder, version, version=version, config=ALL_VERSIONS)
    with running_stack(folder) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        yield client
    split(stack, {})


def split(stack: Stack, document: object = None, model: str = "adder") -> Any:  # noqa: ANN401
    """Set the split if there is a document, and return what holds."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{stack.http}/v2/models/{model}/traffic",
        data=None if document is None else json.dumps(document).encode(),
    )
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def counts(client: Any, requests: int = 200) -> Counter[int]:  # noqa: ANN401
    return Counter(ask(client) for _ in range(requests))


def ask_as(client: Any, user: str) -> int:  # noqa: ANN401
    tensor = triton.InferInput("X", [1, 4], "INT32")
    tensor.set_data_from_numpy(np.zeros((1, 4), np.int32))
    result = client.infer("adder", [tensor], parameters={"user": user})
    return int(result.as_numpy("Y")[0, 0])


def test_a_split_holds_from_the_answer_on(
    stack: Stack,
    client: Any,  # noqa: ANN401
) -> None:
    assert counts(client, 10) == {2: 10}
    told = split(stack, {"weights": {"1": 3, "2": 1}})
    assert told == {"weights": {"1": 3, "2": 1}, "sticky_parameter": ""}
    shares = counts(client)
    # Five standard deviations around 150 of 200.
    assert 119 < shares[1] < 181
    assert ask(client, version="2") == 2  # whoever names a version gets it
    split(stack, {"weights": {"1": 1}})
    assert counts(client, 20) == {1: 20}
    assert split(stack, {})["weights"] == {}
    assert counts(client, 10) == {2: 10}


def test_who_is_told_apart_stays_where_he_is(
    stack: Stack,
    client: Any,  # noqa: ANN401
) -> None:
    split(stack, {"weights": {"1": 1, "2": 1}, "sticky_parameter": "user"})
    chosen = {
        user: {ask_as(client, user) for _ in range(3)} for user in map(str, range(30))
    }
    assert all(len(versions) == 1 for versions in chosen.values())
    assert set.union(*chosen.values()) == {1, 2}


def ask_over_rest(stack: Stack, user: str) -> int:
    tensor = {"name": "X", "shape": [1, 4], "datatype": "INT32", "data": [0] * 4}
    request = urllib.request.Request(
        f"http://127.0.0.1:{stack.http}/v2/models/adder/infer",
        data=json.dumps({"inputs": [tensor]}).encode(),
        headers={"X-User": user},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return int(json.load(answer)["outputs"][0]["data"][0])


def test_a_header_keeps_its_sender_at_one_version_over_both_protocols(
    stack: Stack,
    client: Any,  # noqa: ANN401
) -> None:
    told = split(stack, {"weights": {"1": 1, "2": 1}, "sticky_header": "X-User"})
    assert told["sticky_header"] == "x-user"
    tensor = triton.InferInput("X", [1, 4], "INT32")
    tensor.set_data_from_numpy(np.zeros((1, 4), np.int32))
    chosen = {}
    for user in map(str, range(30)):
        result = client.infer("adder", [tensor], headers={"x-user": user})
        versions = [int(result.as_numpy("Y")[0, 0])]
        versions += [ask_over_rest(stack, user) for _ in range(2)]
        chosen[user] = set(versions)
    assert all(len(versions) == 1 for versions in chosen.values())
    assert set.union(*chosen.values()) == {1, 2}


def test_a_shadow_gets_copies_and_its_differences_are_counted(
    stack: Stack,
    client: Any,  # noqa: ANN401
) -> None:
    told = split(stack, {"shadow_version": 2})
    assert (told["weights"], told["shadow_version"]) == ({}, 2)
    before = told["shadow"]
    assert counts(client, 20) == {1: 20}
    # Version 2 adds 2 where version 1 adds 1.
    eventually(
        lambda: (
            split(stack)["shadow"] == {**before, "differed": before["differed"] + 20}
        )
    )
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.metrics}/metrics") as page:
        text = page.read().decode()
    labels = 'model="adder",version="2",outcome="differed"'
    assert f"nereid_shadow_copies_total{{{labels}}} {before['differed'] + 20}" in text


def test_a_split_is_set_and_told_by_grpc(
    stack: Stack,
    client: Any,  # noqa: ANN401
) -> None:
    command = [
        str(Path(sys.executable).with_name("grpcurl")),
        *("-plaintext", "-import-path", str(ROOT), "-proto", "protos/traffic.proto"),
        *("-d", "@", f"127.0.0.1:{stack.grpc}"),
        "nereid.traffic.TrafficService/TrafficSetting",
    ]
    asked = {
        "model_name": "adder",
        "split": {"weights": {"1": 1}, "shadow_version": 2, "sticky_parameter": "u"},
    }
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert told["split"]["weights"] == {"1": 1}
    assert told["split"]["shadowVersion"] == "2"
    assert counts(client, 5) == {1: 5}


def test_a_split_outlives_control(
    stack: Stack,
    client: Any,  # noqa: ANN401
) -> None:
    split(stack, {"weights": {"1": 1}})
    # It is written once a second at the latest.
    victim = stack.process_of("control")
    eventually(lambda: counts(client, 10) == {1: 10})
    threading.Event().wait(0.2)
    os.kill(victim, signal.SIGKILL)
    assert counts(client, 20) == {1: 20}

    def is_told() -> bool:
        told = split(stack)
        return isinstance(told, dict) and told["weights"] == {"1": 1}

    eventually(is_told)
    assert counts(client, 20) == {1: 20}


@pytest.mark.parametrize(
    ("model", "document", "answer"),
    [
        ("nope", None, (404, "Request for unknown model: 'nope' is not found")),
        (
            "adder",
            {"weights": {"1": 0}},
            (400, "at least one version must have a weight above 0"),
        ),
        ("adder", {"weights": {"x": 1}}, (400, None)),
        (
            "adder",
            {"weights": {"1": 1, "2": 1}, "shadow_version": 2},
            (
                400,
                "version 2 is the shadow version: it gets copies and cannot have a "
                "weight",
            ),
        ),
        ("adder", {"shadow_version": "2"}, (500, None)),
        ("adder", {"shadow_version": 1, "shadow_tolerance": -1}, (400, None)),
        ("adder", {"weights": 1}, (500, None)),
    ],
)
def test_a_split_that_makes_no_sense_is_refused(
    stack: Stack, model: str, document: object, answer: tuple[int, str | None]
) -> None:
    code, text = split(stack, document, model)
    assert (code, text if answer[1] else None) == answer
