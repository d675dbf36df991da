"""What a model is told of the place of a request in its sequence."""

import struct

import pytest

from protos import inference_pb2 as pb
from services.core.datatype import DataType
from services.core.errors import InvalidRequestError
from services.core.model_config_sequences import (
    ControlKind,
    SequenceBatching,
    SequenceControl,
    SequenceControlInput,
)
from services.router.sequence_controls import SequenceControls
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
    return pb.ModelInferRequest.FromString(controls.suffix(correlation_id, **places))


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


def test_appended_to_a_request_the_controls_are_its_last_inputs() -> None:
    batching = SequenceBatching(
        control_inputs=(control(ControlKind.SEQUENCE_START, DataType.INT32),)
    )
    controls = SequenceControls("seq", batching, is_batched=True)
    suffix = controls.suffix(1, starts=True, ends=False)
    merged = pb.ModelInferRequest.FromString(
        add_sub_request().SerializeToString() + suffix
    )
    names = [tensor.name for tensor in merged.inputs]
    assert names == ["INPUT0", "INPUT1", "SEQUENCE_START"]
    assert merged.raw_input_contents[2] == struct.pack("<i", 1)
