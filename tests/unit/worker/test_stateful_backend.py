"""States that the server keeps: handed from one request of a sequence to the next."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.core import byte_tensor
from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError
from services.core.model_config import ModelConfig, SequenceBatching
from services.core.model_config_sequences import InitialState, SequenceState
from services.core.sequence_state import NUMBER_INPUT
from services.worker.backend import (
    BackendAnswer,
    BackendCall,
    BackendFailure,
    BackendReply,
    InstancePlace,
    ReplyTensor,
    RequestTensor,
    Tensors,
)
from services.worker.backends.onnxruntime import OnnxRuntime
from services.worker.execution import Execution
from services.worker.initial_states import initial_states
from services.worker.request_details import NO_DETAILS
from services.worker.sequence_states import SequenceStates, State
from services.worker.signature import Signature
from services.worker.stateful_backend import StatefulBackend, with_states
from services.worker.stateful_requests import StatefulRequestBackend
from tests.unit.worker.messages import answers, batch, ints, request
from tests.unit.worker.onnx_models import config, source, write_model
from tests.unit.worker.puppets import ManualClock


def state(
    dims: Sequence[int] = (4,),
    datatype: DataType = DataType.INT32,
    *initial: InitialState,
) -> SequenceState:
    return SequenceState(
        input_name="STATE_IN",
        output_name="STATE_OUT",
        datatype=datatype,
        dims=tuple(dims),
        initial_states=initial,
    )


def stateful(of: SequenceState, *, max_batch_size: int = 8) -> ModelConfig:
    return config(
        {"X": [4]},
        {"Y": [4]},
        max_batch_size=max_batch_size,
        sequence_batching=SequenceBatching(states=(of,)),
    )


class Sums:
    """Adds each row to its state, which is also what it answers."""

    def __init__(self) -> None:
        self.batches: list[dict[str, NDArray[Any]]] = []
        self.error: Exception | None = None
        self.outputs: Tensors | None = None

    def execute(self, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
        assert "STATE_OUT" in output_names
        if self.error is not None:
            raise self.error
        if self.outputs is not None:
            return self.outputs
        self.batches.append({name: array.copy() for name, array in inputs.items()})
        total = inputs["X"] + inputs["STATE_IN"]
        return {"Y": total, "STATE_OUT": total}

    def unload(self) -> None:
        return


class Appends:
    """Appends the first value of each row to its state; answers its length."""

    def execute(self, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
        del output_names
        grown = np.concatenate([inputs["STATE_IN"], inputs["X"][:, :1]], axis=1)
        length = np.full_like(inputs["X"], grown.shape[1])
        return {"Y": length, "STATE_OUT": grown}

    def unload(self) -> None:
        return


def numbered(x: NDArray[np.int32], *numbers: int) -> dict[str, NDArray[Any]]:
    return {"X": x, NUMBER_INPUT: np.array(numbers, np.uint64).reshape(-1, 1)}


def made(backend: Sums | Appends, of: SequenceState) -> StatefulBackend:
    first = (State(of.initial_dims, bytes(4 * int(np.prod(of.initial_dims)))),)
    return StatefulBackend(backend, (of,), first, is_batched=True)


def ones(rows: int) -> NDArray[np.int32]:
    return np.ones((rows, 4), np.int32)


def test_each_sequence_goes_on_with_its_own_state_in_whatever_row_it_is() -> None:
    backend = made(Sums(), state())
    first = backend.execute(
        numbered(ones(2) * np.array([[1], [10]], np.int32), 7, 8), ["Y"]
    )
    second = backend.execute(numbered(ones(2), 8, 7), ["Y"])
    assert first["Y"][:, 0].tolist() == [1, 10]
    assert second["Y"][:, 0].tolist() == [11, 2]


def test_a_row_that_fills_a_gap_begins_anew_and_keeps_nothing() -> None:
    inner = Sums()
    backend = made(inner, state())
    for _ in range(2):
        backend.execute(numbered(ones(2), 0, 5), ["Y"])
    assert inner.batches[-1]["STATE_IN"][:, 0].tolist() == [0, 1]
    assert set(backend.states.numbers()) == {5}


def test_the_model_is_not_shown_the_numbers() -> None:
    inner = Sums()
    made(inner, state()).execute(numbered(ones(1), 3), ["Y"])
    assert sorted(inner.batches[0]) == ["STATE_IN", "X"]


def test_without_numbers_every_row_begins_anew() -> None:
    inner = Sums()
    backend = made(inner, state())
    backend.execute({"X": ones(3)}, ["Y"])
    assert inner.batches[0]["STATE_IN"].shape == (3, 4)
    assert len(backend.states) == 0


def test_the_states_of_two_routers_are_told_apart() -> None:
    backend = made(Sums(), state())
    mine, others = SequenceStates(), SequenceStates()
    for states, value in ((mine, 1), (others, 5)):
        backend.states = states
        backend.execute(numbered(ones(1) * value, 1), ["Y"])
    backend.states = mine
    assert backend.execute(numbered(ones(1), 1), ["Y"])["Y"][0, 0] == 2


def test_a_failed_execution_leaves_the_states_as_they_were() -> None:
    inner = Sums()
    backend = made(inner, state())
    backend.execute(numbered(ones(1), 1), ["Y"])
    kept = backend.states.of(1)
    inner.error = BackendError("no")
    with pytest.raises(BackendError, match="no"):
        backend.execute(numbered(ones(1), 1), ["Y"])
    assert backend.states.of(1) is kept


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ({}, "did not produce state output 'STATE_OUT'"),
        ({"STATE_OUT": np.zeros((1, 4), np.float32)}, "is float32 where"),
        ({"STATE_OUT": np.zeros((1, 5), np.int32)}, r"has shape \[1, 5\] where"),
        ({"STATE_OUT": np.zeros((2, 4), np.int32)}, r"has shape \[2, 4\] where"),
    ],
)
def test_a_state_that_is_not_as_declared_is_refused(
    outputs: Mapping[str, NDArray[Any]], text: str
) -> None:
    inner = Sums()
    inner.outputs = outputs
    backend = made(inner, state())
    with pytest.raises(BackendError, match=text):
        backend.execute(numbered(ones(1), 1), ["Y"])
    assert len(backend.states) == 0


def test_states_of_different_lengths_are_executed_apart_and_answered_together() -> None:
    backend = made(Appends(), state([-1]))
    backend.execute(numbered(ones(2), 1, 2), ["Y"])
    backend.execute(numbered(ones(1), 2), ["Y"])
    found = backend.execute(numbered(ones(3), 2, 3, 1), ["Y"])
    # A state of variable length begins with one element.
    assert found["Y"][:, 0].tolist() == [4, 2, 3]


def test_rows_that_cannot_be_answered_together_are_an_error() -> None:
    inner = Appends()
    backend = made(inner, state([-1]))
    backend.execute(numbered(ones(1), 1), ["Y"])
    before = backend.states.of(1)
    with pytest.raises(BackendError, match="differs in shape"):
        backend.execute(numbered(ones(2), 1, 2), ["Y", "STATE_OUT"])
    assert backend.states.of(1) is before


def test_a_model_that_does_not_batch_has_states_too() -> None:
    backend = StatefulBackend(
        Sums(), (state(),), (State((4,), bytes(16)),), is_batched=False
    )
    for expected in (1, 2):
        inputs = {"X": ones(1)[0], NUMBER_INPUT: np.array([9], np.uint64)}
        assert backend.execute(inputs, ["Y"])["Y"].tolist() == [expected] * 4


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True)))
def test_whatever_the_batches_each_sequence_counts_its_own_requests(
    batches: list[list[int]],
) -> None:
    backend = made(Sums(), state())
    counts: dict[int, int] = {}
    for numbers in batches:
        found = backend.execute(numbered(ones(len(numbers)), *numbers), ["Y"])
        for row, number in enumerate(numbers):
            counts[number] = counts.get(number, 0) + 1
            assert found["Y"][row].tolist() == [counts[number]] * 4


# ------------------------------------------------------------- initial states


def first_of(of: SequenceState, folder: Path) -> State:
    (found,) = initial_states(source(folder / "1", stateful(of)))
    return found


def initial(data_file: str | None = None) -> InitialState:
    return InitialState(
        name="first", datatype=DataType.INT32, dims=(4,), data_file=data_file
    )


def test_a_state_begins_with_zeros_and_what_is_variable_with_one(
    tmp_path: Path,
) -> None:
    assert first_of(state(), tmp_path) == State((4,), bytes(16))
    assert first_of(state([-1, 2]), tmp_path) == State((1, 2), bytes(8))
    zeros = state([4], DataType.INT32, initial())
    assert first_of(zeros, tmp_path) == State((4,), bytes(16))
    texts = first_of(state([2], DataType.BYTES), tmp_path)
    assert byte_tensor.decode(texts.data) == [b"", b""]


def test_a_state_may_begin_with_the_contents_of_a_file(tmp_path: Path) -> None:
    of = state([-1], DataType.INT32, initial("four"))
    folder = tmp_path / "initial_state"
    folder.mkdir()
    data = np.arange(4, dtype=np.int32).tobytes()
    (folder / "four").write_bytes(data)
    assert first_of(of, tmp_path) == State((4,), data)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("missing", "failed to read the initial state of state input 'STATE_IN'"),
        ("short", "expects 16 bytes, but the data provided from short only has 3"),
        ("../secret", "is not in the folder initial_state"),
    ],
)
def test_a_file_that_cannot_be_the_first_state_is_refused(
    tmp_path: Path, name: str, text: str
) -> None:
    folder = tmp_path / "initial_state"
    folder.mkdir()
    (folder / "short").write_bytes(b"abc")
    (tmp_path / "secret").write_bytes(bytes(16))
    with pytest.raises(ConfigError, match=text):
        first_of(state([4], DataType.INT32, initial(name)), tmp_path)


# ----------------------------------------------------------------- on a runtime


def onnx(folder: Path, of: SequenceState, datatype: DataType) -> StatefulBackend:
    """Load a model whose state is what it was given last; Y is its state before."""
    write_model(
        folder / "1",
        [("Identity", ["STATE_IN"], ["Y"]), ("Identity", ["X"], ["STATE_OUT"])],
        {"X": ["b", 4], "STATE_IN": ["b", 4]},
        {"Y": ["b", 4], "STATE_OUT": ["b", 4]},
        datatype,
    )
    whole = config(
        {"X": [4]},
        {"Y": [4]},
        datatype,
        sequence_batching=SequenceBatching(states=(of,)),
    )
    place = InstancePlace(name="m_0_0", group=0)
    at = source(folder / "1", whole)
    (backend,) = OnnxRuntime().load(at, [place])
    front = with_states(backend, at)
    assert isinstance(front, StatefulBackend)
    return front


@pytest.mark.parametrize("datatype", list(DataType), ids=lambda one: one.value)
def test_states_of_every_datatype_are_kept(tmp_path: Path, datatype: DataType) -> None:
    backend = onnx(tmp_path, state([4], datatype), datatype)
    x: NDArray[Any] = np.array([[0, 1, 0, 1]])
    if datatype is DataType.BYTES:
        x = np.array([[b"", b"a", "é".encode(), b"b"]], object)
    x = x.astype(datatype.numpy_dtype)
    number = {NUMBER_INPUT: np.array([[1]], np.uint64)}
    backend.execute({"X": x, **number}, ["Y"])
    found = backend.execute({"X": x, **number}, ["Y"])["Y"].tolist()
    texts = [[each.decode() for each in row] for row in x] if x.dtype == object else 0
    assert found == (texts or x.tolist())


def test_a_whole_batch_is_answered_without_its_states(tmp_path: Path) -> None:
    backend = onnx(tmp_path, state(), DataType.INT32)
    signature = Signature.from_config(stateful(state()), 1)
    execution = Execution(signature, backend, ManualClock())
    number = np.array([[1]], np.uint64)
    for expected in (0, 1):
        asked = request({"X": ints(1, 2, 3, 4), NUMBER_INPUT: number})
        (answer,) = answers(execution.run(batch(asked)))
        assert answer.names == ("Y",)
        assert answer.array("Y")[0, 0] == expected


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (state([5]), r"complete shape \[-1,5\]"),
        (state([4], DataType.FP32), "expects datatype TYPE_FP32 for input 'STATE_IN'"),
    ],
)
def test_a_state_that_the_file_contradicts_is_refused(
    tmp_path: Path, of: SequenceState, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        onnx(tmp_path, of, DataType.INT32)


def test_a_state_that_the_file_lacks_is_refused(tmp_path: Path) -> None:
    other = SequenceState(
        input_name="STATE_IN", output_name="NOWHERE", datatype=DataType.INT32, dims=(4,)
    )
    with pytest.raises(ConfigError, match="unexpected inference output 'NOWHERE'"):
        onnx(tmp_path, other, DataType.INT32)


# ------------------------------------------------------------ request by request


class OneByOne:
    """Answers its state, and makes the request its next one; fails at -1."""

    def __init__(self) -> None:
        self.calls: list[BackendCall] = []
        self.gives_state = True
        self.datatype = DataType.INT32

    def execute_requests(self, calls: Sequence[BackendCall]) -> list[BackendAnswer]:
        return [self.answer(call) for call in calls]

    def answer(self, call: BackendCall) -> BackendAnswer:
        self.calls.append(call)
        by_slot = {tensor.slot: tensor for tensor in call.inputs}
        x, before = by_slot[0], by_slot[1]
        if bytes(x.data[:4]) == b"\xff" * 4:
            return BackendFailure(3, "negative", is_answer=True)
        tensors = [ReplyTensor(0, DataType.INT32, before.shape, before.data)]
        if self.gives_state:
            tensors.append(ReplyTensor(1, self.datatype, x.shape, x.data))
        return BackendReply(tuple(tensors), {})

    def unload(self) -> None:
        return


def call(value: int, number: int) -> BackendCall:
    x = RequestTensor(0, (1, 4), memoryview(ints(*[value] * 4).tobytes()))
    number_of = RequestTensor(1, (1, 1), memoryview(number.to_bytes(8, "little")))
    return BackendCall("", (x, number_of), (0,), NO_DETAILS)


def answered(backend: StatefulRequestBackend, value: int, number: int) -> int:
    (answer,) = backend.execute_requests([call(value, number)])
    assert isinstance(answer, BackendReply)
    return int(np.frombuffer(answer.tensors[0].data, np.int32)[0])


def one_by_one(inner: OneByOne) -> StatefulRequestBackend:
    first = (State((4,), bytes(16)),)
    return StatefulRequestBackend(inner, stateful(state()), first)


def test_a_backend_that_takes_requests_gets_its_states_as_inputs() -> None:
    inner = OneByOne()
    backend = one_by_one(inner)
    assert [answered(backend, v, n) for v, n in [(1, 1), (2, 2), (3, 1), (4, 2)]] == [
        0,
        0,
        1,
        2,
    ]
    assert [tensor.slot for tensor in inner.calls[0].inputs] == [0, 1]
    assert inner.calls[0].outputs == (0, 1)


def test_an_answer_without_a_state_leaves_it_as_it_was() -> None:
    inner = OneByOne()
    backend = one_by_one(inner)
    answered(backend, 1, 1)
    backend.execute_requests([call(-1, 1)])
    inner.gives_state = False
    assert answered(backend, 2, 1) == 1
    assert answered(backend, 2, 1) == 1


def test_a_request_whose_new_state_is_not_as_declared_fails_alone() -> None:
    inner = OneByOne()
    backend = one_by_one(inner)
    inner.datatype = DataType.FP32
    (answer,) = backend.execute_requests([call(1, 1)])
    assert isinstance(answer, BackendFailure)
    assert "state output 'STATE_OUT' is FP32" in answer.text


def test_the_states_of_sequences_that_are_over_are_let_go() -> None:
    states = SequenceStates()
    for number in range(1, 5):
        states.keep(number, (State((1,), b"x"),))
    states.end([1, 3, 99])
    assert set(states.numbers()) == {2, 4}
