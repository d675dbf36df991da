"""Triton's test backends under their names, as clients of the whole stack see them."""

import json
import queue
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.chaos.load import wait_until
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(180)

DELAY_MS = 300
CONTROLS = """
    { name: "START"
      control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } },
    { name: "READY"
      control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
"""
MORE_CONTROLS = """,
    { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } },
    { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s } }
"""
SUMS = """
max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
CONFIGS = {
    "echo": """
backend: "identity" max_batch_size: 8 dynamic_batching { }
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] },
        { name: "INPUT1" data_type: TYPE_STRING dims: [ -1 ] optional: true } ]
output [ { name: "OUTPUT1" data_type: TYPE_STRING dims: [ -1 ] },
         { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
""",
    "slow_echo": f"""
backend: "identity"
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ] }} ]
parameters {{ key: "execute_delay_ms" value {{ string_value: "{DELAY_MS}" }} }}
""",
    "unequal": """
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 2 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 3 ] } ]
""",
    "repeat_int32": f"""
backend: "repeat" {DECOUPLED}
input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }},
        {{ name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] }},
        {{ name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }},
         {{ name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] }} ]
""",
    "square_int32": f"""
backend: "square" {DECOUPLED}
input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
parameters {{ key: "CUSTOM_FAIL_COUNT" value {{ string_value: "1" }} }}
parameters {{ key: "CUSTOM_EMPTY_COUNT" value {{ string_value: "2" }} }}
""",
    "sums": f"""
backend: "sequence" {SUMS}
sequence_batching {{ direct {{ }} control_input [ {CONTROLS} ] }}
""",
    "dyna": f"""
backend: "dyna_sequence" {SUMS}
sequence_batching {{
  oldest {{ max_candidate_sequences: 4 }}
  control_input [ {CONTROLS} {MORE_CONTROLS % "UINT64"} ]
}}
""",
    "dyna_string": f"""
backend: "dyna_sequence" {SUMS}
sequence_batching {{
  oldest {{ max_candidate_sequences: 4 }}
  control_input [ {CONTROLS} {MORE_CONTROLS % "STRING"} ]
}}
""",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("models")
    for name, config in CONFIGS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    with running_stack(Path(repository), "--exit-on-error=false") as running:
        yield running


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as connected:
        yield connected


def tensor(name: str, array: Any, datatype: str) -> triton.InferInput:  # noqa: ANN401 - an array of any type
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def numbers(name: str, values: Any, dtype: Any = np.int32) -> triton.InferInput:  # noqa: ANN401 - whatever numpy takes
    array = np.array(values, dtype)
    return tensor(name, array, f"{'U' if dtype is np.uint32 else ''}INT32")


def responses(
    client: triton.InferenceServerClient, model: str, *inputs: triton.InferInput
) -> list[Any]:
    """Return the values of OUT, and messages of errors, up to the last response."""
    news: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.start_stream(lambda result, error: news.put((result, error)))
    client.async_stream_infer(model, list(inputs), enable_empty_final_response=True)
    found: list[Any] = []
    try:
        while True:
            result, error = news.get(timeout=30)
            if error is not None:
                found.append(error.message())
                if "shape" in error.message():  # it is the only answer
                    return found
                continue
            out = result.as_numpy("OUT")
            if out is not None:
                index = result.as_numpy("IDX")
                found.append((out[0], index[0]) if index is not None else out[0])
            if result.get_response().parameters["triton_final_response"].bool_param:
                return found
    finally:
        client.stop_stream()


def test_identity_repeats_numbers_and_texts(
    client: triton.InferenceServerClient,
) -> None:
    rows = np.arange(6, dtype=np.int32).reshape(2, 3)
    texts = np.array([[b"", b"a\0b"], ["ü".encode(), b"x"]], np.object_)
    result = client.infer(
        "echo", [tensor("INPUT0", rows, "INT32"), tensor("INPUT1", texts, "BYTES")]
    )
    assert result.as_numpy("OUTPUT0").tolist() == rows.tolist()
    assert result.as_numpy("OUTPUT1").tolist() == texts.tolist()


def test_identity_gives_zeros_for_an_optional_input_that_is_left_out(
    client: triton.InferenceServerClient,
) -> None:
    result = client.infer("echo", [numbers("INPUT0", [[1], [2], [3]])])
    assert result.as_numpy("OUTPUT1").tolist() == [[b""], [b""], [b""]]
    assert result.as_numpy("OUTPUT0").tolist() == [[1], [2], [3]]


def test_identity_takes_requests_of_many_clients_in_one_batch(stack: Stack) -> None:
    found: dict[int, list[int]] = {}

    def ask(value: int) -> None:
        with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as own:
            for _ in range(20):
                result = own.infer("echo", [numbers("INPUT0", [[value]])])
                found.setdefault(value, []).append(result.as_numpy("OUTPUT0").item())

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [n] * 20 for n in range(8)}


def test_identity_takes_the_time_it_is_told_to(
    client: triton.InferenceServerClient,
) -> None:
    client.infer("slow_echo", [tensor("INPUT0", np.zeros((0, 2), np.float32), "FP32")])
    (found,) = client.get_inference_statistics("slow_echo").model_stats
    spent_ms = found.inference_stats.compute_infer.ns / 1e6
    assert DELAY_MS <= spent_ms < DELAY_MS + 200


def test_identity_counts_the_bytes_it_copies(
    stack: Stack, client: triton.InferenceServerClient
) -> None:
    def counted() -> float:
        url = f"http://127.0.0.1:{stack.metrics}/metrics"
        with urllib.request.urlopen(url) as response:
            page = response.read().decode().splitlines()
        return sum(
            float(line.split()[-1])
            for line in page
            if line.startswith("input_byte_size_counter{")
            and 'model="slow_echo"' in line
        )

    before = counted()
    client.infer("slow_echo", [tensor("INPUT0", np.zeros((5, 2), np.float32), "FP32")])
    wait_until(lambda: counted() == before + 40, within_s=30)


def test_what_a_backend_does_not_serve_is_in_the_index(stack: Stack) -> None:
    url = f"http://127.0.0.1:{stack.http}/v2/repository/index"
    request = urllib.request.Request(url, data=b"", method="POST")
    with urllib.request.urlopen(request) as response:  # noqa: S310 - ours
        reasons = {one["name"]: one.get("reason", "") for one in json.load(response)}
    assert reasons.pop("unequal") == (
        "Invalid argument: expected input and output shape to match, got [2] and [3]"
    )
    assert set(reasons.values()) == {""}


def test_repeat_gives_a_response_for_each_element(
    client: triton.InferenceServerClient,
) -> None:
    delays, wait = (
        numbers("DELAY", [1, 0, 2], np.uint32),
        numbers("WAIT", [0], np.uint32),
    )
    found = responses(client, "repeat_int32", numbers("IN", [4, 2, 9]), delays, wait)
    assert found == [(4, 0), (2, 1), (9, 2)]
    nothing = (numbers("IN", []), numbers("DELAY", [], np.uint32), wait)
    assert responses(client, "repeat_int32", *nothing) == []


def test_repeat_wants_a_delay_for_each_element(
    client: triton.InferenceServerClient,
) -> None:
    delays, wait = numbers("DELAY", [1, 0], np.uint32), numbers("WAIT", [0], np.uint32)
    (text,) = responses(client, "repeat_int32", numbers("IN", [4]), delays, wait)
    assert "expected IN and DELAY shape to match, got [1] and [2]" in text


def test_repeat_takes_the_next_request_only_after_the_wait(
    client: triton.InferenceServerClient,
) -> None:
    def waits(ms: int) -> list[Any]:
        inputs = numbers("IN", [1]), numbers("DELAY", [0], np.uint32)
        wait = numbers("WAIT", [ms], np.uint32)
        return responses(client, "repeat_int32", *inputs, wait)

    began = time.monotonic()
    assert waits(DELAY_MS) == waits(0) == [(1, 0)]
    assert time.monotonic() - began >= DELAY_MS / 1000


def test_square_gives_successes_then_failures_then_nothing(
    client: triton.InferenceServerClient,
) -> None:
    assert responses(client, "square_int32", numbers("IN", [5])) == [
        5,
        5,
        "simulated failure",
    ]
    (found,) = client.get_inference_statistics("square_int32").model_stats
    stats = found.response_stats
    assert [stats[str(i)].success.count for i in range(5)] == [1, 1, 0, 0, 0]
    assert [stats[str(i)].fail.count for i in range(5)] == [0, 0, 1, 0, 0]
    assert [stats[str(i)].empty_response.count for i in range(5)] == [0, 0, 0, 1, 1]


def test_square_refuses_less_than_nothing(
    client: triton.InferenceServerClient,
) -> None:
    news: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.start_stream(lambda result, error: news.put((result, error)))
    client.async_stream_infer("square_int32", [numbers("IN", [-1])])
    _, error = news.get(timeout=30)
    client.stop_stream()
    assert "expected IN to be at least 0, got -1" in error.message()


def total(
    client: triton.InferenceServerClient,
    model: str,
    sequence: int | str,
    values: list[int],
    *,
    start: bool = False,
    end: bool = False,
) -> list[int]:
    result = client.infer(
        model,
        [numbers("INPUT", [values])],
        sequence_id=sequence,
        sequence_start=start,
        sequence_end=end,
    )
    found: list[int] = result.as_numpy("OUTPUT")[0].tolist()
    return found


def test_sequence_adds_up_by_slot(client: triton.InferenceServerClient) -> None:
    assert total(client, "sums", 1, [5], start=True) == [5]
    assert total(client, "sums", 2, [7, 1], start=True) == [8, 8]
    # The batch of sequence 2 alone has a gap where sequence 1 is.
    assert total(client, "sums", 2, [1], end=True) == [9]
    assert total(client, "sums", 1, [2**31 - 1]) == [-(2**31) + 4]
    assert total(client, "sums", 1, [3], start=True, end=True) == [3]


@pytest.mark.parametrize(
    ("model", "sequence"), [("dyna", 1007), ("dyna_string", "1007")]
)
def test_dyna_sequence_adds_the_correlation_id_at_the_end(
    client: triton.InferenceServerClient, model: str, sequence: int | str
) -> None:
    assert total(client, model, sequence, [1, 2], start=True) == [3, 3]
    assert total(client, model, sequence, [4]) == [7]
    assert total(client, model, sequence, [0], end=True) == [1014]
    # Nothing is left of it.
    assert total(client, model, sequence, [1], start=True, end=True) == [1008]


def test_dyna_sequence_wants_a_text_that_is_a_number(
    client: triton.InferenceServerClient,
) -> None:
    with pytest.raises(InferenceServerException, match="decodable into an integer"):
        total(client, "dyna_string", "first", [1], start=True, end=True)


def test_a_sequence_takes_one_step_at_a_time(
    client: triton.InferenceServerClient,
) -> None:
    rows = numbers("INPUT", [[1], [2]])
    with pytest.raises(InferenceServerException, match="batch-size 1"):
        client.infer("sums", [rows], sequence_id=9, sequence_start=True)
