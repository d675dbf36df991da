"""What a model is told of the place of a request in its sequence."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import inference_pb2 as pb
from services.core.datatype import DataType
from services.core.errors import InvalidRequestError
from services.core.model_config_sequences import (
    ControlKind,
    SequenceBatching,
    SequenceControl,
    SequenceControlInput,
)
from services.core.wire_format import skip_field
from services.router.sequence_controls import SequenceControls, inputs_end
from tests.unit.router.routes import add_sub_request


def control(
    kind: ControlKind,
    datatype: DataType,
    false_true: tuple[float, float] | None = (0, 1),
) -> SequenceControlInput:
    return SequenceControlInput(
        name=kind.name,
        controls=(
            SequenceControl(
                kind=kind,
                datatype=datatype,
                false_true=None if kind is ControlKind.SEQUENCE_CORRID else false_true,
            ),
        ),
    )


def told(
    *inputs: SequenceControlInput,
    correlation_id: int | str = 42,
    is_batched: bool = True,
    **flags: bool,
) -> pb.ModelInferRequest:
    batching = SequenceBatching(control_inputs=inputs)
    controls = SequenceControls("seq", batching, is_batched=is_batched)
    places = {"starts": False, "ends": False, **flags}
    body = controls.write_into(b"", 0, correlation_id, **places)
    return pb.ModelInferRequest.FromString(body)


def test_each_flag_has_the_value_the_model_declared() -> None:
    message = told(
        control(ControlKind.SEQUENCE_START, DataType.INT32),
        control(ControlKind.SEQUENCE_END, DataType.FP32, (-1.5, 2.5)),
        control(ControlKind.SEQUENCE_READY, DataType.BOOL, (1, 0)),
        starts=True,
    )
    assert [tensor.name for tensor in message.inputs] == [
        "SEQUENCE_START",
        "SEQUENCE_END",
        "SEQUENCE_READY",
    ]
    assert list(message.raw_input_contents) == [
        struct.pack("<i", 1),
        struct.pack("<f", -1.5),
        b"\0",
    ]
    assert [list(tensor.shape) for tensor in message.inputs] == [[1, 1]] * 3


def test_a_model_that_does_not_batch_gets_no_batch_dimension() -> None:
    start = control(ControlKind.SEQUENCE_START, DataType.INT32)
    assert list(told(start, is_batched=False).inputs[0].shape) == [1]


def test_a_row_that_fills_a_gap_is_not_ready() -> None:
    ready = control(ControlKind.SEQUENCE_READY, DataType.INT32)
    assert told(ready, ready=False).raw_input_contents[0] == struct.pack("<i", 0)


@pytest.mark.parametrize(
    ("datatype", "correlation_id", "raw"),
    [
        (DataType.UINT64, 2**64 - 1, b"\xff" * 8),
        (DataType.INT64, 7, struct.pack("<q", 7)),
        (DataType.UINT32, 7, struct.pack("<I", 7)),
        (DataType.INT32, 7, struct.pack("<i", 7)),
        (DataType.BYTES, "abc", b"\3\0\0\0abc"),
        (DataType.BYTES, 7, b"\1\0\0\x007"),
    ],
)
def test_the_correlation_id_has_the_models_datatype(
    datatype: DataType, correlation_id: int | str, raw: bytes
) -> None:
    corrid = control(ControlKind.SEQUENCE_CORRID, datatype)
    message = told(corrid, correlation_id=correlation_id)
    assert list(message.raw_input_contents) == [raw]
    assert message.inputs[0].datatype == datatype.value


def test_a_text_becomes_a_number_of_its_own_where_the_model_wants_one() -> None:
    corrid = control(ControlKind.SEQUENCE_CORRID, DataType.UINT64)
    raws = [
        told(corrid, correlation_id=name).raw_input_contents[0]
        for name in ("abc", "abc", "abd")
    ]
    assert raws[0] == raws[1] != raws[2]
    assert [len(raw) for raw in raws] == [8, 8, 8]


@pytest.mark.parametrize(
    ("datatype", "correlation_id", "reason"),
    [
        (DataType.UINT32, 2**32, "does not fit into UINT32"),
        (DataType.BYTES, "x" * 129, "cannot be longer than 128"),
    ],
)
def test_an_id_that_does_not_fit_is_refused(
    datatype: DataType, correlation_id: int | str, reason: str
) -> None:
    corrid = control(ControlKind.SEQUENCE_CORRID, datatype)
    with pytest.raises(InvalidRequestError, match=reason):
        told(corrid, correlation_id=correlation_id)


def fields(request: pb.ModelInferRequest) -> list[bytes]:
    """Return a request's fields, one by one."""
    body = request.SerializeToString(deterministic=True)
    found, position = [], 0
    while position < len(body):
        _, end = skip_field(body, position)
        found.append(body[position:end])
        position = end
    return found


@given(st.permutations(range(9)))
def test_the_controls_are_a_requests_last_inputs_in_whatever_order_it_came(
    order: list[int],
) -> None:
    batching = SequenceBatching(
        control_inputs=(control(ControlKind.SEQUENCE_START, DataType.INT32),)
    )
    controls = SequenceControls("seq", batching, is_batched=True)
    request = add_sub_request(id="i")
    request.parameters["sequence_id"].int64_param = 1
    request.outputs.add(name="OUTPUT0")
    request.outputs.add(name="OUTPUT1")
    parts = fields(request)
    assert len(parts) == len(order)
    # Of one kind they stay in their order: it is part of what they say.
    kinds = sorted(range(len(parts)), key=lambda n: order[n])
    shuffled = [parts[n] for n in kinds]
    for tag in {part[0] for part in parts}:
        same = iter([part for part in parts if part[0] == tag])
        shuffled = [next(same) if part[0] == tag else part for part in shuffled]
    body = b"".join(shuffled)
    whole = controls.write_into(body, inputs_end(body), 1, starts=True, ends=False)
    merged = pb.ModelInferRequest.FromString(whole)
    names = [tensor.name for tensor in merged.inputs]
    assert names == ["INPUT0", "INPUT1", "SEQUENCE_START"]
    raws = [*request.raw_input_contents, struct.pack("<i", 1)]
    assert list(merged.raw_input_contents) == raws


def test_what_came_in_order_stays_in_order() -> None:
    batching = SequenceBatching(
        control_inputs=(control(ControlKind.SEQUENCE_START, DataType.INT32),)
    )
    controls = SequenceControls("seq", batching, is_batched=True)
    request = add_sub_request(id="i")
    request.outputs.add(name="OUTPUT0")
    body = request.SerializeToString(deterministic=True)
    whole = controls.write_into(body, inputs_end(body), 1, starts=True, ends=False)
    parsed = pb.ModelInferRequest.FromString(whole)
    assert parsed.SerializeToString(deterministic=True) == whole


def test_values_come_in_the_order_of_their_inputs_whatever_tells_the_id() -> None:
    kinds = {
        ControlKind.SEQUENCE_START: DataType.INT32,
        ControlKind.SEQUENCE_CORRID: DataType.UINT32,
        ControlKind.SEQUENCE_END: DataType.INT32,
    }
    batching = SequenceBatching(
        control_inputs=tuple(
            SequenceControlInput(
                name=kind.name,
                controls=control(kind, datatype).controls,
            )
            for kind, datatype in kinds.items()
        )
    )
    controls = SequenceControls("seq", batching, is_batched=True)
    # More ids than are remembered.
    for correlation_id in (*range(1, 5000), 1, 2):
        body = controls.write_into(b"", 0, correlation_id, starts=False, ends=True)
        message = pb.ModelInferRequest.FromString(body)
        assert [tensor.name for tensor in message.inputs] == [k.name for k in kinds]
        values = [int.from_bytes(raw, "little") for raw in message.raw_input_contents]
        assert values == [0, correlation_id, 1]
