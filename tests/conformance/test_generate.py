"""The generate extension with curl's means: JSON in, JSON or events out."""

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(180)

CONFIG = """
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [
  { name: "text" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "count" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
]
output [ { name: "word" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
# Says its text as often as it is told; at "fail" it fails, at "for ever" it goes on
# until nobody listens, and "cancelled" tells how often that came to pass.
MODEL = """
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    cancelled = 0

    def say(self, sender, word):
        tensor = pb_utils.Tensor("word", np.array([word.encode()], dtype=object))
        sender.send(pb_utils.InferenceResponse([tensor]))

    def until_nobody_listens(self, request, sender):
        self.say(sender, "begun")
        while not request.is_cancelled():
            time.sleep(0.01)
        TritonPythonModel.cancelled += 1
        sender.send(flags=FINAL)

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "text")
            word = text.as_numpy()[0].decode()
            count = pb_utils.get_input_tensor_by_name(request, "count")
            if word == "for ever":
                threading.Thread(
                    target=self.until_nobody_listens, args=(request, sender)
                ).start()
                continue
            if word == "cancelled":
                self.say(sender, str(self.cancelled))
                count = np.array([0])
            for index in range(1 if count is None else int(np.ravel(
                count if isinstance(count, np.ndarray) else count.as_numpy()
            )[0])):
                if word == "fail" and index > 0:
                    error = pb_utils.TritonError("enough")
                    sender.send(pb_utils.InferenceResponse(error=error))
                else:
                    self.say(sender, f"{word}{index}")
            if word == "fail at once":
                error = pb_utils.TritonError("never")
                sender.send(pb_utils.InferenceResponse(error=error))
            sender.send(flags=FINAL)
        return None
"""


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("talker") / "models"
    (folder / "talker" / "1").mkdir(parents=True)
    (folder / "talker" / "config.pbtxt").write_text(CONFIG)
    (folder / "talker" / "1" / "model.py").write_text(MODEL)
    with running_stack(folder) as running:
        yield running


def post(stack: Stack, method: str, **document: Any) -> tuple[int, str, bytes]:  # noqa: ANN401 - JSON
    connection = http.client.HTTPConnection("127.0.0.1", stack.http, timeout=30)
    path = f"/v2/models/talker/{method}"
    connection.request("POST", path, json.dumps(document))
    response = connection.getresponse()
    content_type = response.getheader("content-type", "")
    found = (response.status, content_type, response.read())
    connection.close()
    return found


def events(body: bytes) -> list[Any]:
    """Return the data of server-sent events."""
    parts = body.decode().split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def test_one_response_is_the_answer(talker: Stack) -> None:
    status, content_type, body = post(talker, "generate", id="7", text="hi")
    assert (status, content_type) == (200, "application/json")
    assert json.loads(body) == {
        "id": "7",
        "model_name": "talker",
        "model_version": "1",
        "word": "hi0",
    }


@pytest.mark.parametrize("count", [0, 2])
def test_generate_wants_exactly_one_response(talker: Stack, count: int) -> None:
    _, _, body = post(talker, "generate", text="hi", count=count)
    assert json.loads(body)["error"].startswith("generate expects model to produce")


@pytest.mark.parametrize("count", [1, 3])
def test_every_response_is_an_event(talker: Stack, count: int) -> None:
    status, content_type, body = post(talker, "generate_stream", text="a", count=count)
    assert (status, content_type) == (200, "text/event-stream; charset=utf-8")
    assert [event["word"] for event in events(body)] == [f"a{i}" for i in range(count)]


def test_no_response_is_an_empty_stream(talker: Stack) -> None:
    status, content_type, body = post(talker, "generate_stream", text="a", count=0)
    assert (status, content_type) == (200, "text/event-stream; charset=utf-8")
    assert body == b""


def test_an_error_behind_events_is_an_event(talker: Stack) -> None:
    status, _, body = post(talker, "generate_stream", text="fail", count=2)
    assert status == 200
    assert [event.get("error") for event in events(body)] == [None, "enough"]


@pytest.mark.parametrize("method", ["generate", "generate_stream"])
def test_an_error_before_anything_else_is_the_answer(
    talker: Stack, method: str
) -> None:
    status, _, body = post(talker, method, text="fail at once", count=0)
    assert (status, json.loads(body)) == (500, {"error": "never"})


def test_a_client_that_leaves_stops_the_model(talker: Stack) -> None:
    body = json.dumps({"text": "for ever"}).encode()
    request = b"POST /v2/models/talker/generate_stream HTTP/1.1\r\nHost: x\r\n"
    request += b"Content-Length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", talker.http), timeout=30) as client:
        client.sendall(request)
        received = b""
        while b"begun" not in received:
            received += client.recv(4096)
    for _ in range(1000):
        answer = post(talker, "generate", text="cancelled")[2]
        if json.loads(answer)["word"] == "1":
            break
    else:
        pytest.fail("the model was not told")
