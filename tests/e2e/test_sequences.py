"""Models with state behind the whole stack: a client's sequence of requests."""

import os
import queue
import re
import signal
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.chaos.load import wait_until
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(180)

IDLE_US = 1_000_000
DELAY_US = 200_000
SLOTS = 4

# The sum so far of a sequence, which only the instance that has begun it knows. A
# value below 0 makes it say where it is, and wait.
MODEL = """
import os
import pathlib
import threading
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}
        self.busy = pathlib.Path(args["model_repository"]) / "busy"

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        def first(name):
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return tensor.as_numpy().flat[0]

        key = first("ID")
        if not first("READY"):
            return self.response(0)
        if first("START"):
            self.sums[key] = 0
        self.sums[key] += first("X")
        if first("X") == -2:
            os._exit(1)
        if first("X") < 0:
            self.busy.touch()
            threading.Event().wait(60)
        if first("END"):
            return self.response(self.sums.pop(key))
        return self.response(self.sums[key])

    def response(self, total):
        output = pb_utils.Tensor("SUM", np.array([[total]], np.int32))
        return pb_utils.InferenceResponse([output])
"""

# Executes a request as often as it says. What it knows of a sequence it finds by the
# sequence's number, which it is given if the client gives none.
GENERATIVE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(
            __import__("json").loads(args["model_config"]))
        self.left = {}
        self.most = 0

    def execute(self, requests):
        self.most = max(self.most, len(requests))
        answers = [self.answer(request) for request in requests]
        return None if self.decoupled else answers

    def answer(self, request):
        key = request.correlation_id()
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            self.left[key] = int(x.flat[0])
        self.left[key] -= 1
        left = self.left[key]
        if left:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        else:
            del self.left[key]
        value = left if self.decoupled else self.most
        response = pb_utils.InferenceResponse(
            [pb_utils.Tensor("SUM", np.array([[value]], np.int32))])
        if self.decoupled:
            request.get_response_sender().send(response, 0 if left else 1)
            return None
        return None if left else response
"""
GENERATIVE_CONFIG = """
backend: "python" max_batch_size: 4
input [ {{ name: "X" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
model_transaction_policy {{ decoupled: {decoupled} }}
sequence_batching {{ iterative_sequence: true oldest {{ }} }}
"""

CONFIG = """
backend: "python" max_batch_size: {rows}
input [ {{ name: "X" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: {instances} }} ]
sequence_batching {{
  max_sequence_idle_microseconds: {idle_us}
  {strategy}
  control_input [
    {{ name: "START"
       control {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }} }},
    {{ name: "END"
       control {{ kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] }} }},
    {{ name: "READY"
       control {{ kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] }} }},
    {{ name: "ID"
       control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {id_type} }} }}
  ]
}}
"""
LOST = (
    "the worker that kept the sequence's state of model 'direct' was lost; begin the "
    "sequence anew with the START flag"
)


def write(repository: Path, name: str, strategy: str, **fields: object) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    settings = {
        "rows": SLOTS,
        "instances": 1,
        "idle_us": 60_000_000,
        "id_type": "TYPE_UINT64",
    }
    config = CONFIG.format(**{**settings, **fields}, strategy=strategy)
    (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write(folder, "direct", "direct { }", instances=2)
    write(folder, "oldest", "oldest { max_candidate_sequences: 8 }", instances=2)
    delay = f"max_queue_delay_microseconds: {DELAY_US}"
    oldest = f"oldest {{ max_candidate_sequences: 8 {delay} }}"
    write(folder, "patient", oldest, id_type="TYPE_STRING")
    write(folder, "single", "direct { }", rows=1, idle_us=IDLE_US)
    write(folder, "mortal", "direct { }")
    write(folder, "narrow", "direct { }", rows=1)
    for name in ("countdown", "generator"):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(GENERATIVE)
        decoupled = "true" if name == "generator" else "false"
        text = GENERATIVE_CONFIG.format(decoupled=decoupled)
        (folder / name / "config.pbtxt").write_text(text)
    return folder


@pytest.fixture(scope="module")
def stack(repository: Path) -> Iterator[Stack]:
    with running_stack(repository) as running:
        yield running


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as connected:
        yield connected


def number(value: int, module: Any = triton) -> Any:  # noqa: ANN401 - tritonclient is untyped
    tensor = module.InferInput("X", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    return tensor


def send(
    client: triton.InferenceServerClient,
    model: str,
    sequence: int | str,
    value: int,
    flags: str = "",
) -> int:
    """Send one request; ``flags`` may have "start" and "end" in it."""
    result = client.infer(
        model,
        [number(value)],
        sequence_id=sequence,
        sequence_start="start" in flags,
        sequence_end="end" in flags,
        client_timeout=30,
    )
    return int(result.as_numpy("SUM")[0, 0])


def whole(
    client: triton.InferenceServerClient,
    model: str,
    sequence: int | str,
    values: Sequence[int],
) -> list[int]:
    """Send one sequence, each request after the answer to the one before."""
    last = len(values) - 1
    flags = {0: "start", last: "end"}
    return [
        send(client, model, sequence, value, flags.get(i, ""))
        for i, value in enumerate(values)
    ]


def pending(stack: Stack, model: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.metrics}/metrics") as page:
        text = page.read().decode()
    name = "nv_inference_pending_request_count"
    found = re.search(rf'^{name}{{model="{model}",[^}}]*}} (\d+)', text, re.MULTILINE)
    return int(found[1]) if found else 0


def executions(client: triton.InferenceServerClient, model: str) -> int:
    (found,) = client.get_inference_statistics(model).model_stats
    return int(found.execution_count)


@pytest.mark.parametrize("model", ["direct", "oldest"])
@pytest.mark.parametrize("count", [6, 20])
def test_each_of_many_sequences_at_a_time_has_its_own_sum(
    client: triton.InferenceServerClient, model: str, count: int
) -> None:
    inputs = {n: list(range(n, 10 * n, n)) for n in range(1, count + 1)}
    with ThreadPoolExecutor(count) as pool:
        running = {
            n: pool.submit(whole, client, model, n, values)
            for n, values in inputs.items()
        }
        for n, values in inputs.items():
            assert running[n].result() == np.cumsum(values).tolist()


def test_requests_sent_ahead_are_executed_in_their_order(
    client: triton.InferenceServerClient,
) -> None:
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    try:
        for i in range(20):
            for sequence in (1, 2, 3):
                client.async_stream_infer(
                    "oldest",
                    [number(sequence)],
                    request_id=str(sequence),
                    sequence_id=sequence,
                    sequence_start=i == 0,
                    sequence_end=i == 19,
                )
        sums: dict[str, list[int]] = {"1": [], "2": [], "3": []}
        for _ in range(60):
            result, error = answers.get(timeout=30)
            assert error is None
            total = int(result.as_numpy("SUM")[0, 0])
            sums[result.get_response().id].append(total)
    finally:
        client.stop_stream()
    for name, found in sums.items():
        assert found == [int(name) * (i + 1) for i in range(20)]


def test_requests_of_different_sequences_share_an_execution(
    client: triton.InferenceServerClient,
) -> None:
    before = executions(client, "patient")
    with ThreadPoolExecutor(SLOTS) as pool:
        names = [f"sequence {n}" for n in range(SLOTS)]
        running = [pool.submit(whole, client, "patient", n, [1, 2]) for n in names]
        assert [each.result() for each in running] == [[1, 3]] * SLOTS
    assert executions(client, "patient") - before < 2 * SLOTS


def test_rest_clients_have_sequences_too(stack: Stack) -> None:
    with triton_http.InferenceServerClient(f"127.0.0.1:{stack.http}") as client:
        sums = []
        for i, value in enumerate([3, 4, 5]):
            result = client.infer(
                "direct",
                [number(value, triton_http)],
                sequence_id=99,
                sequence_start=i == 0,
                sequence_end=i == 2,
            )
            sums.append(int(result.as_numpy("SUM")[0, 0]))
    assert sums == [3, 7, 12]


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_a_sequence_begins_with_start_and_is_over_after_end(
    client: triton.InferenceServerClient, model: str
) -> None:
    with pytest.raises(InferenceServerException) as never_begun:
        send(client, model, 700, 1)
    assert whole(client, model, 700, [1, 2]) == [1, 3]
    with pytest.raises(InferenceServerException) as over:
        send(client, model, 700, 1)
    for caught in (never_begun, over):
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
        assert caught.value.message() == (
            f"inference request for sequence 700 to model '{model}' must specify the "
            "START flag on the first request of the sequence"
        )


def test_a_sequence_has_one_request_at_least_and_starts_over_with_start(
    client: triton.InferenceServerClient,
) -> None:
    assert send(client, "direct", 1, 5, "start end") == 5
    assert send(client, "direct", 1, 6, "start") == 6
    assert send(client, "direct", 1, 7, "start") == 7
    assert send(client, "direct", 1, 1, "end") == 8


def test_a_request_without_a_sequence_is_refused(
    client: triton.InferenceServerClient,
) -> None:
    with pytest.raises(InferenceServerException, match="non-zero or non-empty") as bad:
        client.infer("direct", [number(1)])
    assert bad.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_a_silent_sequence_ends_and_lets_the_next_one_in(
    client: triton.InferenceServerClient,
) -> None:
    assert send(client, "single", 1, 5, "start") == 5
    assert send(client, "single", 2, 6, "start end") == 6
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        send(client, "single", 1, 1)


def test_a_sequence_that_waits_too_long_for_a_place_is_refused(
    client: triton.InferenceServerClient,
) -> None:
    assert send(client, "narrow", 1, 5, "start") == 5
    with pytest.raises(InferenceServerException) as expired:
        client.infer(
            "narrow",
            [number(1)],
            sequence_id=2,
            sequence_start=True,
            timeout=100_000,
            client_timeout=30,
        )
    assert expired.value.status() == "StatusCode.UNAVAILABLE"
    text = "timeout of the corresponding sequence has been expired"
    assert expired.value.message() == text
    assert send(client, "narrow", 1, 6, "end") == 11


def test_a_client_that_cancels_ends_its_sequence(
    stack: Stack, client: triton.InferenceServerClient
) -> None:
    assert send(client, "narrow", 1, 5, "start") == 5
    # These two wait for the only place.
    done: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    first, _ = (
        client.async_infer(
            "narrow",
            [number(1)],
            lambda result, error: done.put((result, error)),
            sequence_id=2,
            sequence_start=starts,
        )
        for starts in (True, False)
    )
    wait_until(lambda: pending(stack, "narrow") == 2, within_s=30)
    first.cancel()
    errors = [done.get(timeout=30)[1] for _ in range(2)]
    assert {error.status() for error in errors} == {"StatusCode.CANCELLED"}
    texts = [error.message() for error in errors]
    assert any("was cancelled, which ends the sequence" in text for text in texts)
    assert send(client, "narrow", 1, 6, "end") == 11


def test_a_model_process_that_dies_ends_its_sequences(
    client: triton.InferenceServerClient,
) -> None:
    send(client, "mortal", 1, 5, "start")
    send(client, "mortal", 2, 5, "start")
    with pytest.raises(InferenceServerException) as lost:
        send(client, "mortal", 1, -2)
    assert lost.value.status() == "StatusCode.UNAVAILABLE"
    assert lost.value.message() == LOST.replace("direct", "mortal")
    for sequence in (1, 2):
        with pytest.raises(InferenceServerException, match="must specify the START"):
            send(client, "mortal", sequence, 1)
    for sequence in (1, 2):
        assert whole(client, "mortal", sequence, [3, 4]) == [3, 7]


def test_a_generative_model_executes_requests_until_it_has_done(
    client: triton.InferenceServerClient,
) -> None:
    before = executions(client, "countdown")
    with ThreadPoolExecutor(4) as pool:
        running = [
            pool.submit(client.infer, "countdown", [number(200)], client_timeout=60)
            for _ in range(4)
        ]
        most = [int(one.result().as_numpy("SUM")[0, 0]) for one in running]
    # They share batches while they last, whenever they came.
    assert max(most) > 1
    assert 200 <= executions(client, "countdown") - before < 800


def test_a_generative_model_may_answer_at_every_step(
    client: triton.InferenceServerClient,
) -> None:
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    try:
        for name in ("a", "b"):
            client.async_stream_infer("generator", [number(5)], request_id=name)
        found: dict[str, list[int]] = {"a": [], "b": []}
        for _ in range(10):
            result, error = answers.get(timeout=30)
            assert error is None
            left = int(result.as_numpy("SUM")[0, 0])
            found[result.get_response().id].append(left)
    finally:
        client.stop_stream()
    assert found == {"a": [4, 3, 2, 1, 0], "b": [4, 3, 2, 1, 0]}


def test_a_killed_worker_ends_its_sequences_which_may_then_begin_anew(
    stack: Stack, client: triton.InferenceServerClient, repository: Path
) -> None:
    busy = repository / "direct" / "busy"
    send(client, "direct", 1, 5, "start")
    send(client, "direct", 2, 5, "start")
    with ThreadPoolExecutor(1) as pool:
        in_flight = pool.submit(send, client, "direct", 1, -1)
        wait_until(busy.exists, within_s=30)
        os.kill(stack.process_of("worker"), signal.SIGKILL)
        with pytest.raises(InferenceServerException) as lost:
            in_flight.result()
    assert lost.value.status() == "StatusCode.UNAVAILABLE"
    assert lost.value.message() == LOST
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        send(client, "direct", 2, 1)
    for sequence in (1, 2):
        assert whole(client, "direct", sequence, [3, 4]) == [3, 7]
