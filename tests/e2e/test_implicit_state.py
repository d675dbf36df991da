"""Models whose state the server keeps, behind the whole stack.

Source: Triton's user guide, "Implicit State Management", and its tests of it.
"""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests.chaos.load import wait_until
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(180)

ROWS = 4
STATE_ELEMENTS = 1 << 16
STATE_MIB = STATE_ELEMENTS * 4 / (1 << 20)

# The sum so far, and the same as the state; two rows of a batch never meet.
Node: TypeAlias = tuple[str, list[str], list[str], dict[str, Any]]
SUM: list[Node] = [
    ("Add", ["X", "STATE_IN"], ["SUM"], {}),
    ("Identity", ["SUM"], ["STATE_OUT"], {}),
]
# All that came so far, and its sum.
LIST: list[Node] = [
    ("Concat", ["STATE_IN", "X"], ["STATE_OUT"], {"axis": 1}),
    ("ReduceSum", ["STATE_OUT", "AXES"], ["SUM"], {"keepdims": 1}),
]
# A large state, of which one element counts.
LARGE: list[Node] = [
    ("Add", ["X", "STATE_IN"], ["STATE_OUT"], {}),
    ("ReduceMax", ["STATE_OUT"], ["SUM"], {"axes": [1], "keepdims": 1}),
]

CONFIG = """
backend: "{backend}" max_batch_size: {rows}
input [ {{ name: "X" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: {instances} }} ]
sequence_batching {{
  max_sequence_idle_microseconds: {idle_us}
  {strategy}
  state [ {{
    input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_INT32
    dims: [ {dims} ] {state}
  }} ]
}}
{more}
"""
DURABLE = 'parameters { key: "nereid_state_checkpoint" value { string_value: "true" } }'

# At -1 it says where it is, and waits; but not a second time.
PYTHON = """
import pathlib
import threading
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.busy = pathlib.Path(args["model_repository"]) / "busy"

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x, state = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("X", "STATE_IN")
        )
        if x.flat[0] == -1 and not self.busy.exists():
            self.busy.touch()
            threading.Event().wait(60)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, x + state) for name in ("SUM", "STATE_OUT")]
        )
"""


def write_onnx(
    folder: Path,
    nodes: Sequence[Node],
    dims: int | str,
) -> None:
    def info(name: str, size: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.INT32, ["b", size])

    graph = helper.make_graph(
        [helper.make_node(op, i, o, **more) for op, i, o, more in nodes],
        "stateful",
        [info("X", 1), info("STATE_IN", dims)],
        [info("SUM", 1), info("STATE_OUT", dims)],
        [helper.make_tensor("AXES", TensorProto.INT64, [1], [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def write_config(repository: Path, name: str, strategy: str, **fields: object) -> None:
    settings = {
        "backend": "onnxruntime",
        "rows": ROWS,
        "instances": 1,
        "idle_us": 60_000_000,
        "dims": 1,
        "state": "",
        "more": "",
    }
    text = CONFIG.format(**{**settings, **fields}, strategy=strategy)
    (repository / name / "config.pbtxt").write_text(text)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("direct", "oldest", "filed"):
        write_onnx(folder / name / "1", SUM, 1)
    write_config(folder, "direct", "direct { }", instances=2)
    candidates = "oldest { max_candidate_sequences: 8 }"
    write_config(folder, "oldest", candidates, instances=2)
    begun = 'initial_state: { name: "first" data_type: TYPE_INT32 dims: [ 1 ] %s }'
    file = begun % 'data_file: "hundred"'
    write_config(folder, "filed", "direct { }", state=file)
    (folder / "filed" / "initial_state").mkdir()
    (folder / "filed" / "initial_state" / "hundred").write_bytes(
        np.int32(100).tobytes()
    )
    write_onnx(folder / "growing" / "1", LIST, "n")
    in_place = "use_same_buffer_for_input_output: true use_growable_memory: true"
    state = begun % "zero_data: true" + in_place
    write_config(folder, "growing", candidates, dims=-1, state=state)
    write_onnx(folder / "large" / "1", LARGE, STATE_ELEMENTS)
    write_config(folder, "large", "direct { }", dims=STATE_ELEMENTS, idle_us=200_000)
    for name, more in {"python": "", "durable_python": DURABLE}.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(PYTHON)
        write_config(folder, name, "direct { }", backend="python", more=more)
    write_onnx(folder / "durable" / "1", LIST, "n")
    write_config(folder, "durable", candidates, dims=-1, more=DURABLE)
    return folder


@pytest.fixture(scope="module")
def stack(repository: Path) -> Iterator[Stack]:
    with running_stack(repository) as running:
        yield running


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as connected:
        yield connected


def send(
    client: triton.InferenceServerClient,
    model: str,
    sequence: int | str,
    value: int,
    flags: str = "",
) -> int:
    """Send one request; ``flags`` may have "start" and "end" in it."""
    tensor = triton.InferInput("X", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    result = client.infer(
        model,
        [tensor],
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


@pytest.mark.parametrize("model", ["direct", "oldest", "growing", "python"])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_each_of_many_sequences_at_a_time_goes_on_with_its_own_state(
    client: triton.InferenceServerClient, model: str, count: int
) -> None:
    inputs = {n: list(range(n, 8 * n, n)) for n in range(1, count + 1)}
    with ThreadPoolExecutor(count) as pool:
        running = {
            n: pool.submit(whole, client, model, n, values)
            for n, values in inputs.items()
        }
        for n, values in inputs.items():
            assert running[n].result() == np.cumsum(values).tolist()


def test_a_state_may_begin_with_the_contents_of_a_file(
    client: triton.InferenceServerClient,
) -> None:
    for _ in range(2):
        assert whole(client, "filed", "text", [1, 2, 3]) == [101, 103, 106]


@pytest.mark.parametrize("model", ["direct", "oldest", "python"])
def test_start_begins_a_living_sequence_anew(
    client: triton.InferenceServerClient, model: str
) -> None:
    assert send(client, model, 5, 1, "start") == 1
    assert send(client, model, 5, 2) == 3
    assert send(client, model, 5, 7, "start") == 7
    assert send(client, model, 5, 1, "end") == 8


def test_clients_see_neither_the_states_nor_what_tells_them_apart(
    client: triton.InferenceServerClient,
) -> None:
    metadata = client.get_model_metadata("direct")
    assert [tensor.name for tensor in metadata.inputs] == ["X"]
    assert [tensor.name for tensor in metadata.outputs] == ["SUM"]
    tensor = triton.InferInput("STATE_IN", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[1]], np.int32))
    with pytest.raises(InferenceServerException, match="STATE_IN"):
        client.infer("direct", [tensor], sequence_id=1, sequence_start=True)


def test_memory_stays_flat_over_thousands_of_sequences(
    stack: Stack, client: triton.InferenceServerClient
) -> None:
    processes = [stack.process_of(role) for role in ("worker", "router")]
    for n in range(1, 101):
        whole(client, "large", n, [1, 1])
    before_mib = [resident_mib(pid) for pid in processes]
    for n in range(1, 2001):
        assert whole(client, "large", n, [1, 1]) == [1, 2]
    # Others are begun anew, or fall silent and lose their place to the next.
    for _ in range(50):
        send(client, "large", 1, 1, "start")
    for n in range(100, 100 + 3 * ROWS):
        assert send(client, "large", n, 1, "start") == 1
    # Kept, they would be 500 MiB.
    for pid, before in zip(processes, before_mib, strict=True):
        assert resident_mib(pid) - before < 40 * STATE_MIB + 40


def resident_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) / 1024


def test_a_state_that_cannot_be_says_why_the_model_is_not_served(
    tmp_path: Path,
) -> None:
    begun = 'initial_state { name: "n" dims: 1 %s }'
    broken: dict[str, tuple[dict[str, object], str]] = {
        "other_shape": ({"dims": 2}, "complete shape [-1,2]"),
        "other_type": (
            {"state": begun % "data_type: TYPE_FP32 zero_data: true"},
            "does not match the state data type",
        ),
        "no_file": (
            {"state": begun % 'data_type: TYPE_INT32 data_file: "x"'},
            "failed to read the initial state of state input 'STATE_IN'",
        ),
    }
    for name, (fields, _) in broken.items():
        write_onnx(tmp_path / name / "1", SUM, 1)
        write_config(tmp_path, name, "direct { }", **fields)
    with (
        running_stack(tmp_path, "--exit-on-error=false") as other,
        triton.InferenceServerClient(f"127.0.0.1:{other.grpc}") as asking,
    ):
        index = asking.get_model_repository_index().models
    reasons = {found.name: (found.state, found.reason) for found in index}
    for name, (_, reason) in broken.items():
        assert reasons[name][0] == "UNAVAILABLE"
        assert reason in reasons[name][1]


def test_with_a_checkpoint_sequences_survive_the_loss_of_their_worker(
    stack: Stack, client: triton.InferenceServerClient, repository: Path
) -> None:
    busy = repository / "durable_python" / "busy"
    for n in range(1, 21):
        assert send(client, "durable", n % 8 + 1, n, "start") == n
    for n in range(1, 9):
        send(client, "durable", n, 100)
    send(client, "direct", 1, 5, "start")
    assert send(client, "durable_python", "text", 5, "start") == 5
    with ThreadPoolExecutor(1) as pool:
        in_flight = pool.submit(send, client, "durable_python", "text", -1)
        wait_until(busy.exists, within_s=30)
        os.kill(stack.process_of("worker"), signal.SIGKILL)
        # It is executed once more, from the state before it.
        assert in_flight.result() == 4
    assert send(client, "durable_python", "text", 3, "end") == 7
    # Each goes on where it was: n of 13 to 20 was its last START.
    for n in range(13, 21):
        assert send(client, "durable", n % 8 + 1, 1) == n + 101
    for n in range(13, 21):
        assert send(client, "durable", n % 8 + 1, 1, "end") == n + 102
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        send(client, "direct", 1, 1)
