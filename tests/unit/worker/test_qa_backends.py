"""What Triton's test backends want of a configuration, and do with requests."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.datatype import DataType
from services.core.errors import ConfigError, InvalidRequestError
from services.core.model_config import (
    ControlKind,
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    ModelInput,
    ModelOutput,
    SequenceBatching,
    SequenceControl,
    SequenceControlInput,
)
from services.worker import backends
from services.worker.backend import (
    BackendAnswer,
    BackendCall,
    BackendFailure,
    BackendReply,
    InstancePlace,
    ModelSource,
    RequestTensor,
)
from services.worker.device import Device, DeviceKind
from services.worker.qa_backends import accumulators, dyna_sequence
from services.worker.qa_backends.identity import Identity
from services.worker.qa_backends.repeat import Repeat
from services.worker.qa_backends.square import Square
from services.worker.request_details import NO_DETAILS

WAIT_S = 10
INT32, UINT32 = DataType.INT32, DataType.UINT32
PLACE = InstancePlace(name="m_0", group=0)


def takes(
    name: str,
    dims: tuple[int, ...] = (-1,),
    datatype: DataType = INT32,
    *,
    optional: bool = False,
) -> ModelInput:
    return ModelInput(name=name, datatype=datatype, dims=dims, optional=optional)


def gives(
    name: str, dims: tuple[int, ...] = (-1,), datatype: DataType = INT32
) -> ModelOutput:
    return ModelOutput(name=name, datatype=datatype, dims=dims)


def control(
    name: str, kind: ControlKind, datatype: DataType = INT32
) -> SequenceControlInput:
    pair = None if kind is ControlKind.SEQUENCE_CORRID else (0.0, 1.0)
    of = SequenceControl(kind=kind, datatype=datatype, false_true=pair)
    return SequenceControlInput(name=name, controls=(of,))


START = control("START", ControlKind.SEQUENCE_START)
READY = control("READY", ControlKind.SEQUENCE_READY)
END = control("END", ControlKind.SEQUENCE_END)
CORRID = control("CORRID", ControlKind.SEQUENCE_CORRID, DataType.UINT64)

IDENTITY = ModelConfig(
    name="m",
    backend="identity",
    max_batch_size=4,
    inputs=(takes("INPUT0"), takes("INPUT1", optional=True)),
    outputs=(gives("OUTPUT0"), gives("OUTPUT1")),
)
REPEAT = ModelConfig(
    name="m",
    backend="repeat",
    decoupled=True,
    inputs=(
        takes("IN"),
        takes("DELAY", datatype=UINT32),
        takes("WAIT", (1,), UINT32),
    ),
    outputs=(gives("OUT", (1,)), gives("IDX", (1,), UINT32)),
)
SQUARE = ModelConfig(
    name="m",
    backend="square",
    decoupled=True,
    inputs=(takes("IN", (1,)),),
    outputs=(gives("OUT", (1,)),),
)
SEQUENCE = ModelConfig(
    name="m",
    backend="sequence",
    inputs=(takes("INPUT"),),
    outputs=(gives("OUTPUT"),),
    sequence_batching=SequenceBatching(control_inputs=(START, READY)),
)
DYNA = replace(
    SEQUENCE,
    backend="dyna_sequence",
    sequence_batching=SequenceBatching(control_inputs=(START, END, READY, CORRID)),
)
TEXT_CORRID = control("CORRID", ControlKind.SEQUENCE_CORRID, DataType.INT32)

REFUSED = [
    (replace(IDENTITY, outputs=(gives("OUTPUT0"),)), "equal input/output pairs"),
    (
        replace(IDENTITY, inputs=(takes("INPUT0"), takes("X"))),
        r"expected input name to follow INPUT<index> pattern, got 'X'",
    ),
    (
        replace(IDENTITY, outputs=(gives("OUTPUT0"), gives("Y"))),
        r"expected output name to follow OUTPUT<index> pattern, got 'Y'",
    ),
    (
        replace(IDENTITY, outputs=(gives("OUTPUT0"), gives("OUTPUT2"))),
        "expected input and output indices to match",
    ),
    (
        replace(
            IDENTITY, outputs=(gives("OUTPUT0", datatype=UINT32), gives("OUTPUT1"))
        ),
        "datatype to match, got TYPE_INT32 and TYPE_UINT32",
    ),
    (
        replace(IDENTITY, parameters={"execute_delay_ms": "soon"}),
        "parameter 'execute_delay_ms' of model 'm' must be a whole number, got 'soon'",
    ),
    (
        replace(REPEAT, max_batch_size=1),
        "only supports models with max_batch_size == 0",
    ),
    (replace(REPEAT, decoupled=False), "repeat backend needs model_transaction_policy"),
    (replace(REPEAT, inputs=REPEAT.inputs[:2]), "expected 3 inputs, got 2"),
    (
        replace(REPEAT, outputs=(gives("OUT", (2,)), gives("IDX", (1,), UINT32))),
        r"expected OUT shape to be \[1\], got \[2\]",
    ),
    (
        replace(REPEAT, outputs=(gives("OUT", (1,)), gives("IDX", (1,)))),
        "expected IDX datatype to be UINT32, got TYPE_INT32",
    ),
    (replace(SQUARE, decoupled=False), "square backend needs model_transaction_policy"),
    (
        replace(SQUARE, inputs=(takes("INPUT", (1,)),)),
        "expected first input tensor name to be IN, got INPUT",
    ),
    (
        replace(SEQUENCE, sequence_batching=DYNA.sequence_batching),
        "'START' and 'READY' must be configured as the control inputs",
    ),
    (
        replace(SEQUENCE, sequence_batching=None),
        "'START' and 'READY' must be configured",
    ),
    (
        replace(SEQUENCE, outputs=(gives("OUTPUT", (1,)),)),
        "must have output 'OUTPUT' with shape matching 'INPUT'",
    ),
    (
        replace(SEQUENCE, instance_groups=(InstanceGroup(kind=InstanceKind.GPU),)),
        "'sequence' backend only supports CPU instances",
    ),
    (
        replace(
            DYNA,
            sequence_batching=SequenceBatching(
                control_inputs=(START, END, READY, TEXT_CORRID)
            ),
        ),
        "model CORRID control input must have TYPE_UINT64 or TYPE_STRING data-type",
    ),
]


def source(config: ModelConfig) -> ModelSource:
    return ModelSource(
        config=config, version=1, directory="/none", device=Device(kind=DeviceKind.CPU)
    )


def load(config: ModelConfig) -> Any:  # noqa: ANN401 - any backend
    runtime = backends.find_runtime(config)
    (instance,) = runtime.load(source(config), [PLACE])
    return instance


def call(*arrays: Any, outputs: tuple[int, ...] = (0,)) -> BackendCall:  # noqa: ANN401 - arrays or None
    tensors = tuple(
        RequestTensor(slot, array.shape, memoryview(array.tobytes()))
        for slot, array in enumerate(arrays)
        if array is not None
    )
    return BackendCall("", tensors, outputs, NO_DETAILS)


def int32(*values: int) -> Any:  # noqa: ANN401 - an array
    return np.array(values, np.int32)


def uint32(*values: int) -> Any:  # noqa: ANN401 - an array
    return np.array(values, np.uint32)


class Collected:
    """What a decoupled model has delivered for its calls."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.final = threading.Event()
        self.cancel: Callable[[int], None] = lambda _: None
        self.on_answer: Callable[[], None] = lambda: None

    def deliver(
        self, number: int, answer: BackendAnswer | None, is_final: bool
    ) -> None:
        if is_final:
            self.final.set()
        self.answers.append((number, shown(answer)))
        self.on_answer()

    def cancel_with(self, cancel: Callable[[int], None]) -> None:
        self.cancel = cancel


def shown(answer: BackendAnswer | None) -> Any:  # noqa: ANN401 - values, a text or None
    if isinstance(answer, BackendFailure):
        return answer.text
    if not isinstance(answer, BackendReply):
        return None
    return [np.frombuffer(one.data, np.int32).tolist() for one in answer.tensors]


def test_every_stand_in_loads_the_model_it_is_for() -> None:
    kinds = [type(load(one)).__name__ for one in (IDENTITY, REPEAT, SQUARE)]
    assert kinds == ["Identity", "Repeat", "Square"]
    assert type(load(SEQUENCE)).__name__ == "SequenceSums"
    assert type(load(DYNA)).__name__ == "DynaSequenceSums"


@pytest.mark.parametrize(("config", "words"), REFUSED)
def test_another_model_is_refused_in_tritons_words(
    config: ModelConfig, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load(config)


def test_a_model_without_tensors_is_told_to_say_them() -> None:
    runtime = backends.find_runtime(IDENTITY)
    with pytest.raises(ConfigError, match=r"must say its inputs and outputs in config"):
        runtime.inspect(source(IDENTITY))


def test_each_instance_is_slower_than_the_one_before() -> None:
    parameters = {"execute_delay_ms": "20", "instance_wise_delay_multiplier": "3"}
    slow = source(replace(IDENTITY, parameters=parameters))
    made = [Identity(slow, PLACE, number) for number in range(3)]
    assert [one._delay_s for one in made] == [0.02, 0.06, 0.12]


def test_identity_gives_only_what_is_wanted_and_a_failure_for_what_is_not_there() -> (
    None
):
    both = call(int32(1, 2).reshape(1, 2), int32(7).reshape(1, 1), outputs=(1,))
    second_only = call(None, int32(7).reshape(1, 1), outputs=(0, 1))
    found = load(IDENTITY).execute_requests([both, second_only])
    assert isinstance(found[0], BackendReply)
    assert [one.slot for one in found[0].tensors] == [1]
    assert shown(found[0]) == [[7]]
    assert shown(found[1]) == "failed to get input 'INPUT0'"


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1))
def test_sums_are_those_of_32_bits(values: list[int]) -> None:
    with np.errstate(over="ignore"):
        expected = np.add.reduce(np.array(values, np.int32), dtype=np.int32)
    assert accumulators.int32(sum(values)) == expected


@pytest.mark.parametrize(
    ("text", "number"), [(b"12", 12), (b" -3x", -3), (b"+7", 7), (b"10 11", 10)]
)
def test_a_correlation_id_is_the_number_its_text_begins_with(
    text: bytes, number: int
) -> None:
    raw = len(text).to_bytes(4, "little") + text
    assert dyna_sequence.correlation_number(raw, DataType.BYTES) == number


@pytest.mark.parametrize("text", [b"", b"x1", b"-", b"\xff"])
def test_a_text_that_begins_with_no_number_is_refused(text: bytes) -> None:
    raw = len(text).to_bytes(4, "little") + text
    with pytest.raises(InvalidRequestError, match="decodable into an integer"):
        dyna_sequence.correlation_number(raw, DataType.BYTES)


def test_a_slot_that_is_not_ready_keeps_its_sum() -> None:
    def step(value: int, *, start: int = 0, ready: int = 1) -> BackendCall:
        return call(int32(value), int32(start), int32(ready))

    model = load(replace(SEQUENCE, max_batch_size=0))
    (first,) = model.execute_requests([step(3, start=1)])
    (gap,) = model.execute_requests([step(9, start=1, ready=0)])
    (second,) = model.execute_requests([step(4)])
    assert [shown(one) for one in (first, gap, second)] == [[[3]], [], [[7]]]


def test_an_unload_ends_the_responses_that_are_still_to_come() -> None:
    seen = Collected()
    model: Repeat = load(REPEAT)
    hour_ms = 3_600_000
    request = call(int32(1, 2), uint32(0, hour_ms), uint32(0), outputs=(0, 1))
    first = threading.Event()
    seen.on_answer = first.set
    assert model.execute_decoupled([request], seen.deliver, seen.cancel_with) == [None]
    assert first.wait(WAIT_S)
    model.unload()
    assert seen.answers == [(0, [[1], [0]]), (0, "the model was unloaded")]


def test_square_stops_at_a_client_that_leaves() -> None:
    seen = Collected()
    model: Square = load(SQUARE)
    seen.on_answer = lambda: seen.cancel(0)
    model.execute_decoupled([call(int32(1000))], seen.deliver, seen.cancel_with)
    assert seen.final.wait(WAIT_S)
    model.unload()
    assert seen.answers == [(0, [[1000]]), (0, None)]


def test_square_answers_each_request_of_a_batch_by_itself() -> None:
    seen = Collected()
    model: Square = load(replace(SQUARE, max_batch_size=8))
    one, bad, none = (
        call(int32(count).reshape(-1, 1) if rows == 1 else int32(1, 1).reshape(2, 1))
        for count, rows in ((1, 1), (1, 2), (0, 1))
    )
    failures = model.execute_decoupled([one, bad, none], seen.deliver, seen.cancel_with)
    model.unload()
    assert [failure and failure.text for failure in failures] == [
        None,
        "unexpected shape for IN input",
        None,
    ]
    assert sorted(seen.answers, key=str) == [(0, None), (0, [[1]]), (2, None)]
