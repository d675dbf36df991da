"""The records of a trace file."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import control_pb2, inference_pb2
from services.control.trace_records import TensorText, Trace, records_of
from services.control.trace_wire import tensor_data, trace_from_proto
from services.core import byte_tensor


def objects(trace: Trace, first_id: int = 1) -> list[dict[str, object]]:
    records, _ = records_of(trace, first_id)
    return [json.loads(record) for record in records]


def test_records_are_in_tritons_order_and_form() -> None:
    trace = Trace(
        model="m",
        version=3,
        request_id='r"1',
        timestamps=(
            ("HTTP_RECV_START", 1),
            ("REQUEST_START", 2),
            ("QUEUE_START", 3),
            ("COMPUTE_OUTPUT_START", 4),
            ("COMPUTE_END", 5),
        ),
        inputs=(TensorText(name="I", data="1,2", shape=(1, 2), datatype="INT32"),),
        outputs=(TensorText(name="O", data="3", shape=(1,), datatype="FP32"),),
    )

    def at(name: str, ns: int) -> dict[str, object]:
        return {"id": 9, "timestamps": [{"name": name, "ns": ns}]}

    assert objects(trace, 9) == [
        at("HTTP_RECV_START", 1),
        {"id": 9, "model_name": "m", "model_version": 3, "request_id": 'r"1'},
        at("REQUEST_START", 2),
        at("QUEUE_START", 3),
        {
            "id": 9,
            "activity": "TENSOR_QUEUE_INPUT",
            "tensor": {"name": "I", "data": "1,2", "shape": "1,2", "dtype": "INT32"},
        },
        at("COMPUTE_OUTPUT_START", 4),
        {
            "id": 9,
            "activity": "TENSOR_BACKEND_OUTPUT",
            "tensor": {"name": "O", "data": "3", "shape": "1", "dtype": "FP32"},
        },
        at("COMPUTE_END", 5),
    ]


def test_children_have_ids_of_their_own_and_name_their_parent() -> None:
    grandchild = Trace(model="c", version=1)
    child = Trace(model="b", version=1, children=(grandchild,))
    records, next_id = records_of(
        Trace(model="a", version=1, children=(child, grandchild)), 5
    )
    described = [json.loads(record) for record in records]
    assert [(d["id"], d.get("parent_id")) for d in described] == [
        (5, None),
        (6, 5),
        (7, 6),
        (8, 5),
    ]
    assert next_id == 9


def test_a_trace_without_times_has_its_tensors_all_the_same() -> None:
    tensor = TensorText(name="T", data="1", shape=(1,), datatype="INT8")
    trace = Trace(model="m", version=1, inputs=(tensor,), outputs=(tensor,))
    assert [record.get("activity") for record in objects(trace)] == [
        None,
        "TENSOR_QUEUE_INPUT",
        "TENSOR_BACKEND_OUTPUT",
    ]


@pytest.mark.parametrize(
    ("datatype", "values", "data"),
    [
        ("BOOL", np.array([True, False]), "1,0"),
        ("INT8", np.array([65, -1], np.int8), "65,-1"),
        ("UINT64", np.array([2**64 - 1], np.uint64), "18446744073709551615"),
        ("FP16", np.array([1.5, -0.0], np.float16), "1.5,-0"),
        (
            "FP32",
            np.array([3e10, 0.1, np.nan, np.inf], np.float32),
            "3e+10,0.1,nan,inf",
        ),
        ("BF16", np.array([0x3FC0, 0xC000], np.uint16), "1.5,-2"),
        ("INT32", np.array([], np.int32), ""),
    ],
)
def test_numbers_are_written_as_triton_does(
    datatype: str, values: np.ndarray[tuple[int], np.dtype[np.generic]], data: str
) -> None:
    assert tensor_data(datatype, values.tobytes()) == data


def test_plain_text_is_written_as_triton_does() -> None:
    assert tensor_data("BYTES", byte_tensor.encode([b"ab", b""])) == '"ab",""'


@given(st.lists(st.binary(max_size=9), max_size=4))
def test_bytes_of_any_content_are_valid_json_twice_over(elements: list[bytes]) -> None:
    data = tensor_data("BYTES", byte_tensor.encode(elements))
    tensor = TensorText(name="T", data=data, shape=(1,), datatype="BYTES")
    read = objects(Trace(model="m", version=1, inputs=(tensor,)))[1]["tensor"]
    assert isinstance(read, dict)
    texts = [element.decode(errors="backslashreplace") for element in elements]
    assert json.loads(f"[{read['data']}]", strict=False) == texts


@pytest.mark.parametrize(
    ("datatype", "content"), [("INT32", b"123"), ("BYTES", b"\xff"), ("NOPE", b"1")]
)
def test_what_cannot_be_read_is_empty(datatype: str, content: bytes) -> None:
    assert tensor_data(datatype, content) in {"", '""'}


def test_what_lies_in_shared_memory_has_no_data_and_takes_nobody_elses() -> None:
    request = inference_pb2.ModelInferRequest(raw_input_contents=[b"\x07"])
    shared = request.inputs.add(name="A", datatype="INT8", shape=[1])
    shared.parameters["shared_memory_region"].string_param = "region"
    request.inputs.add(name="B", datatype="INT8", shape=[1])
    trace = trace_from_proto(
        control_pb2.TracedRequest(model="m", request=request.SerializeToString())
    )
    assert [(t.name, t.data) for t in trace.inputs] == [("A", ""), ("B", "7")]


def test_a_message_that_is_none_has_no_tensors() -> None:
    message = control_pb2.TracedRequest(model="m", request=b"\xff", response=b"\xff")
    trace = trace_from_proto(message)
    assert (trace.inputs, trace.outputs) == ((), ())
