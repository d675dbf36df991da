"""Models that respond as often as they like, as a client of a stream sees them."""

import contextlib
import queue
import re
import threading
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

FINAL = "triton_final_response"
LARGE_BYTES = 1 << 20
RESPONSES = 400
# For /proc/[pid]/clear_refs; see proc(5).
FORGET_PEAK = "5"

# Each request is answered in a thread of its own, so that none waits for another.
MODEL = """
import pathlib
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.folder = pathlib.Path(args["model_repository"])

    def execute(self, requests):
        for request in requests:
            get = lambda name: pb_utils.get_input_tensor_by_name(request, name)
            count, size = (int(get(n).as_numpy()[0]) for n in ("COUNT", "SIZE"))
            how = getattr(self, get("HOW").as_numpy()[0].decode())
            sender = request.get_response_sender()
            if how == self.inside:
                how(sender, count, size)
            else:
                threading.Thread(target=how, args=(sender, count, size)).start()

    def count(self, sender, count, size):
        for i in range(count):
            sender.send(self.response(i, size))
            with (self.folder / f"sent_{count}").open("ab") as progress:
                progress.write(b".")
        sender.send(flags=FINAL)

    def with_last(self, sender, count, size):
        for i in range(count):
            sender.send(self.response(i, size), FINAL if i + 1 == count else 0)

    def fail(self, sender, count, size):
        for i in range(count):
            sender.send(self.response(i, size))
        error = pb_utils.TritonError("broken off", pb_utils.TritonError.UNAVAILABLE)
        sender.send(pb_utils.InferenceResponse([], error=error), FINAL)

    def stumble(self, sender, count, size):
        for i in range(count):
            if i == 1:
                error = pb_utils.TritonError("stumbled")
                sender.send(pb_utils.InferenceResponse([], error=error))
            sender.send(self.response(i, size))
        sender.send(flags=FINAL)

    def endless(self, sender, count, size):
        sender.send(self.response(0, size))
        while not sender.is_cancelled():
            threading.Event().wait(0.01)
        (self.folder / f"cancelled_{count}").touch()
        sender.send(flags=FINAL)

    def inside(self, sender, count, size):
        self.endless(sender, count, size)

    def die(self, sender, count, size):
        for i in range(count):
            sender.send(self.response(i, size))
        raise ValueError("nobody hears this")

    def response(self, number, size):
        index = pb_utils.Tensor("INDEX", np.array([number], np.int32))
        data = pb_utils.Tensor("DATA", np.full(size, number % 256, np.uint8))
        return pb_utils.InferenceResponse([index, data])
"""
CONFIG = """
backend: "python"
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] },
        { name: "SIZE" data_type: TYPE_INT32 dims: [ 1 ] },
        { name: "HOW" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "INDEX" data_type: TYPE_INT32 dims: [ 1 ] },
         { name: "DATA" data_type: TYPE_UINT8 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
model_transaction_policy { decoupled: true }
"""


class Stream:
    """One stream of a client, and what came of it."""

    def __init__(self, client: triton.InferenceServerClient) -> None:
        self._client = client
        self._news: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        # A reader that is not allowed to read keeps the stream's only thread.
        self.may_read = threading.Event()
        self.may_read.set()
        client.start_stream(self._heard)

    def _heard(self, result: Any, error: Any) -> None:  # noqa: ANN401 - tritonclient is untyped
        self.may_read.wait(60)
        self._news.put((result, error))

    def ask(
        self, how: str, count: int, *, size: int = 1, name: str = "", final: bool = True
    ) -> None:
        """Send a request; ``final``: have the end of its responses told."""
        self._client.async_stream_infer(
            "many",
            inputs(how, count, size),
            request_id=name,
            enable_empty_final_response=final,
        )

    def next(self) -> tuple[Any, Any]:
        """Return the next response and the next error, one of them None."""
        return self._news.get(timeout=30)

    def until_final(self) -> list[Any]:
        """Return the responses up to the one that says it is the last."""
        found: list[Any] = []
        while not found or not is_final(found[-1]):
            result, error = self.next()
            assert error is None, error
            found.append(result)
        return found


def inputs(how: str, count: int, size: int) -> list[triton.InferInput]:
    values = {
        "COUNT": np.array([count], np.int32),
        "SIZE": np.array([size], np.int32),
        "HOW": np.array([how.encode()], np.object_),
    }
    made = []
    for name, array in values.items():
        datatype = "BYTES" if name == "HOW" else "INT32"
        made.append(triton.InferInput(name, [1], datatype))
        made[-1].set_data_from_numpy(array)
    return made


def is_final(result: Any) -> bool:  # noqa: ANN401 - tritonclient is untyped
    return bool(result.get_response().parameters[FINAL].bool_param)


def index(result: Any) -> int | None:  # noqa: ANN401 - tritonclient is untyped
    """Return which response it is; None for one without tensors."""
    found = result.as_numpy("INDEX")
    return None if found is None else int(found[0])


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    version = folder / "many" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (folder / "many" / "config.pbtxt").write_text(CONFIG)
    return folder


@pytest.fixture(scope="module")
def stack(repository: Path) -> Iterator[Stack]:
    with running_stack(repository) as running:
        yield running


@contextlib.contextmanager
def streaming(stack: Stack, *, cancel: bool = False) -> Iterator[Stream]:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        stream = Stream(client)
        try:
            yield stream
        finally:
            stream.may_read.set()
            client.stop_stream(cancel_requests=cancel)


@pytest.fixture
def stream(stack: Stack) -> Iterator[Stream]:
    with streaming(stack) as opened:
        yield opened


@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_all_responses_come_in_order_and_then_an_empty_last_one(
    stream: Stream, count: int
) -> None:
    stream.ask("count", count, name="a")
    results = stream.until_final()
    assert [index(result) for result in results] == [*range(count), None]
    assert {result.get_response().id for result in results} == {"a"}
    assert [is_final(result) for result in results] == [False] * count + [True]


@pytest.mark.parametrize("count", [1, 3])
def test_a_last_response_that_knows_it_is_one_says_so(
    stream: Stream, count: int
) -> None:
    stream.ask("with_last", count)
    assert [index(result) for result in stream.until_final()] == list(range(count))


def test_who_does_not_ask_for_it_gets_no_empty_response(stream: Stream) -> None:
    stream.ask("count", 0, name="none", final=False)
    stream.ask("count", 2, name="two", final=False)
    stream.ask("with_last", 1, name="one", final=False)
    seen = []
    for _ in range(3):
        result, error = stream.next()
        assert error is None
        seen.append((result.get_response().id, index(result)))
    assert sorted(seen) == [("one", 0), ("two", 0), ("two", 1)]
    # Nothing of the first three is still to come.
    stream.ask("count", 0, name="end")
    (end,) = stream.until_final()
    assert end.get_response().id == "end"


def test_requests_of_one_stream_are_answered_side_by_side(stream: Stream) -> None:
    for name in "abcdefgh":
        stream.ask("count", 20, name=name)
    seen: dict[str, list[int | None]] = {name: [] for name in "abcdefgh"}
    for _ in range(8 * 21):
        result, error = stream.next()
        assert error is None
        seen[result.get_response().id].append(index(result))
    assert all(found == [*range(20), None] for found in seen.values())


def test_an_error_ends_the_responses_of_its_request_only(stream: Stream) -> None:
    stream.ask("fail", 2, name="a")
    for expected in (0, 1):
        assert index(stream.next()[0]) == expected
    result, error = stream.next()
    assert result is None
    assert error.message() == "broken off"
    stream.ask("count", 1, name="b")
    assert [index(result) for result in stream.until_final()] == [0, None]


def test_a_model_may_go_on_after_an_error(stream: Stream) -> None:
    stream.ask("stumble", 2)
    assert index(stream.next()[0]) == 0
    assert stream.next()[1].message() == "stumbled"
    assert [index(result) for result in stream.until_final()] == [1, None]


def test_a_client_is_told_when_nobody_can_answer_any_more(stream: Stream) -> None:
    stream.ask("die", 1)
    assert index(stream.next()[0]) == 0
    result, error = stream.next()
    assert result is None
    assert "let go of the request without sending a final response" in error.message()
    stream.ask("count", 1)
    assert [index(result) for result in stream.until_final()] == [0, None]


def peak_bytes(process: int) -> int:
    """Return the most memory that a process has had since its peak was forgotten."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def test_a_slow_reader_costs_no_memory_and_holds_up_nobody_else(
    stack: Stack, repository: Path
) -> None:
    processes = [stack.process_of(role) for role in ("router", "worker")]
    for each in processes:
        Path(f"/proc/{each}/clear_refs").write_text(FORGET_PEAK)
    before = [peak_bytes(each) for each in processes]
    progress = repository / "many" / f"sent_{RESPONSES}"
    with streaming(stack) as slow, streaming(stack) as quick:
        slow.may_read.clear()
        slow.ask("count", RESPONSES, size=LARGE_BYTES)
        sent, rounds = -1, 0
        while rounds < 5:
            quick.ask("count", 100)
            assert len(quick.until_final()) == 101
            now = progress.stat().st_size if progress.exists() else -1
            sent, rounds = now, rounds + 1 if now == sent > 0 else 0
        peak = [peak_bytes(each) for each in processes]
        assert sent < RESPONSES
        slow.may_read.set()
        for number in range(RESPONSES):
            result, error = slow.next()
            assert error is None
            assert index(result) == number
            data = result.as_numpy("DATA")
            assert data.shape == (LARGE_BYTES,)
            assert data[0] == data[-1] == number % 256
        assert is_final(slow.next()[0])
    assert progress.stat().st_size == RESPONSES
    grown = [after - now for after, now in zip(peak, before, strict=True)]
    assert max(grown) < RESPONSES * LARGE_BYTES // 4, grown


def test_a_model_learns_that_its_client_has_gone(
    stack: Stack, repository: Path
) -> None:
    with streaming(stack, cancel=True) as left, streaming(stack) as stays:
        left.ask("endless", 1)
        assert index(left.next()[0]) == 0
        stays.ask("count", 1)
        assert len(stays.until_final()) == 2
        assert not (repository / "many" / "cancelled_1").exists()
    wait_until((repository / "many" / "cancelled_1").exists, within_s=30)


def test_a_model_learns_it_while_execute_runs(stack: Stack, repository: Path) -> None:
    with streaming(stack, cancel=True) as left:
        left.ask("inside", 3)
        assert index(left.next()[0]) == 0
    wait_until((repository / "many" / "cancelled_3").exists, within_s=30)


def test_a_client_that_dies_is_one_that_has_gone(
    stack: Stack, repository: Path
) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}")
    stream = Stream(client)
    stream.ask("endless", 2)
    assert index(stream.next()[0]) == 0
    client._channel.close()  # as the end of its process does
    wait_until((repository / "many" / "cancelled_2").exists, within_s=30)
    client.stop_stream()


def test_each_response_is_counted(stack: Stack, stream: Stream) -> None:
    def counted(key: str, what: str) -> int:
        with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
            (found,) = client.get_inference_statistics("many").model_stats
        statistics = found.response_stats.get(key)
        return int(getattr(statistics, what).count) if statistics else 0

    of_interest = (("0", "success"), ("1", "fail"), ("2", "empty_response"))
    before = [counted(*each) for each in of_interest]
    stream.ask("count", 2)
    stream.until_final()
    stream.ask("fail", 1)
    assert index(stream.next()[0]) == 0
    assert stream.next()[1] is not None
    after = [counted(*each) for each in of_interest]
    assert [b - a for a, b in zip(before, after, strict=True)] == [2, 1, 1]


def test_only_a_stream_can_take_several_responses(stack: Stack) -> None:
    with (
        triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client,
        pytest.raises(InferenceServerException) as caught,
    ):
        client.infer("many", inputs("count", 1, 1))
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
