import gzip
import json
import struct

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import inference_pb2 as pb
from services.core.datatype import DataType
from services.core.errors import (
    InternalError,
    InvalidRequestError,
    ServingError,
    UnsupportedError,
)
from services.core.model_config import ModelConfig
from services.router.rest_plan import ModelView
from services.router.rest_request import check_size, parse_infer
from tests.unit.router.rest_models import (
    NOTHING,
    adder,
    adder_body,
    body,
    echo,
    parsed,
    tensor,
    view,
)

InputTensor = pb.ModelInferRequest.InferInputTensor
INT32_16 = struct.pack("<16i", *range(16))
IHCL = "inference-header-content-length"


def parameter(value: pb.InferParameter) -> object:
    return getattr(value, str(value.WhichOneof("parameter_choice")))


def with_tail(document: bytes, *raws: bytes) -> tuple[bytes, dict[str, str]]:
    return b"".join((document, *raws)), {IHCL: str(len(document))}


def binary_tensor(size: int, name: str = "IN") -> dict[str, object]:
    return {
        "name": name,
        "datatype": "INT32",
        "shape": [size // 4],
        "parameters": {"binary_data_size": size},
    }


def test_json_becomes_the_request_a_grpc_client_would_send() -> None:
    request, plan = parsed(adder_body(id="my id/1"), adder())
    assert request == pb.ModelInferRequest(
        model_name="simple",
        id="my id/1",
        inputs=[
            InputTensor(name=f"INPUT{i}", datatype="INT32", shape=[1, 16])
            for i in (0, 1)
        ],
        raw_input_contents=[INT32_16, INT32_16],
    )
    assert not plan.binary_by_default


def test_the_fields_are_in_the_order_that_admission_learns_by() -> None:
    text = adder_body(id="a", outputs=[{"name": "OUTPUT1"}], parameters={"x": 1})
    serialized = parse_infer(text, NOTHING, adder()).request
    canonical = pb.ModelInferRequest.FromString(serialized).SerializeToString(
        deterministic=True
    )
    assert serialized == canonical


def test_the_version_of_the_path_is_the_version_of_the_request() -> None:
    model = view(adder().config, version="3")
    request, _ = parsed(adder_body(), model)
    assert request.model_version == "3"


def test_unknown_members_are_ignored() -> None:
    text = body(tensor([1, 2], foo=1), model_name="x", bar={})
    request, _ = parsed(text, echo(DataType.INT32))
    assert request.model_name == "echo"


def test_binary_tensors_are_cut_from_the_tail_in_order() -> None:
    document = body(binary_tensor(8), tensor([7], name="B"), binary_tensor(4, "C"))
    text, headers = with_tail(document, b"abcdefgh", b"ijkl")
    request, _ = parsed(text, echo(DataType.INT32), headers)
    seven = b"\7\0\0\0"
    assert list(request.raw_input_contents) == [b"abcdefgh", seven, b"ijkl"]


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b"1234567", "unexpected size for input 'IN', expecting 1 additional bytes"),
        (b"123456789", "unexpected additional input data for model 'echo'"),
    ],
)
def test_a_tail_of_another_size_is_refused(tail: bytes, message: str) -> None:
    text, headers = with_tail(body(binary_tensor(8)), tail)
    with pytest.raises(InvalidRequestError, match=message):
        parsed(text, echo(DataType.INT32), headers)


@pytest.mark.parametrize(
    "text", ["-1", "99", "9" * 5000, "-9" + "9" * 5000, "00000099"]
)
def test_a_header_length_beyond_the_body_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parsed(b"12345", adder(), {IHCL: text})
    assert str(raised.value) == (
        f"inference header size should be in range (0, 5), got: {text}"
    )


@pytest.mark.parametrize("text", ["abc", "", "1.5", "0x10", "+3", "--1", "²"])
def test_a_header_length_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="Raw request must only have 1 input"):
        parsed(b"12345678", adder(), {IHCL: text})
    with pytest.raises(InvalidRequestError, match="Unable to parse"):
        parsed(b"12345678", echo(DataType.INT32), {IHCL: text})


def test_a_header_length_may_be_the_whole_body_and_have_zeros_in_front() -> None:
    text = adder_body()
    request, _ = parsed(text, adder(), {IHCL: f"000{len(text)}"})
    assert len(request.raw_input_contents) == 2


@pytest.mark.parametrize(
    ("batches", "dims", "shape"),
    [
        (False, (-1,), (6,)),
        (True, (-1,), (1, 6)),
        (True, (3, -1), (1, 3, 2)),
        (True, (6,), (1, 6)),
    ],
)
def test_a_raw_body_is_the_one_input_in_a_batch_of_one(
    *, batches: bool, dims: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    model = echo(DataType.INT32, dims, batches=batches)
    request, plan = parsed(bytes(24), model, {IHCL: "0"})
    assert tuple(request.inputs[0].shape) == shape
    assert (request.inputs[0].name, request.inputs[0].datatype) == ("IN", "INT32")
    assert list(request.raw_input_contents) == [bytes(24)]
    assert plan.binary_by_default


def test_a_raw_body_of_bytes_is_one_element() -> None:
    request, _ = parsed(b"abc", echo(DataType.BYTES, (1,)), {IHCL: "0"})
    assert list(request.raw_input_contents) == [b"\3\0\0\0abc"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            adder(),
            r"Raw request must only have 1 input \(found 1\) to be deduced but got 2 "
            "inputs in 'simple' model configuration",
        ),
        (echo(DataType.BYTES, (2,)), "For BYTE datatype raw input 'IN'"),
        (echo(DataType.INT8, (-1, -1)), "more than one variable-sized dimension"),
    ],
)
def test_a_raw_body_for_a_model_that_leaves_doubt_is_refused(
    model: ModelView, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parsed(b"", model)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({"inputs": {}}, "parse 'inputs': attempt to access JSON non-array as array"),
        (
            {"inputs": [], "id": 7},
            "parse 'id': attempt to access JSON non-string as str",
        ),
        (
            {"inputs": [], "outputs": {}},
            "parse 'outputs': attempt to access JSON non-arr",
        ),
        (
            {"inputs": [], "outputs": [{}]},
            "parse 'name': attempt to access non-existing",
        ),
        (
            {"inputs": [], "parameters": []},
            "parse 'parameters': attempt to access JSON n",
        ),
        ({"inputs": [5]}, "parse 'name': attempt to access non-existing object member"),
        (
            {"inputs": [{"name": 5}]},
            "parse 'name': attempt to access JSON non-string as",
        ),
        (
            {"inputs": [{"name": "IN"}]},
            "parse 'datatype': attempt to access non-existing",
        ),
        (
            {"inputs": [{"name": "IN", "datatype": "INT32"}]},
            "parse 'shape': attempt to access non-existing",
        ),
    ],
)
def test_members_that_are_missing_or_of_another_type_are_named(
    document: object, message: str
) -> None:
    with pytest.raises(InternalError) as raised:
        parsed(orjson.dumps(document), adder())
    assert str(raised.value).startswith(f"Unable to {message}")


@pytest.mark.parametrize("dim", [-1, "1", 1.0, True])
def test_a_dimension_is_an_unsigned_integer(dim: object) -> None:
    text = body(tensor([1], shape=[dim]))
    with pytest.raises(InternalError, match="'shape': attempt to access JSON non-unsi"):
        parsed(text, echo(DataType.INT32))


def test_a_dimension_that_int64_cannot_hold_is_refused() -> None:
    text = body({**binary_tensor(0), "shape": [2**63]})
    with pytest.raises(InternalError, match="exceeds"):
        parsed(text, echo(DataType.INT32))


def test_an_unknown_datatype_is_refused_with_the_input() -> None:
    with pytest.raises(InvalidRequestError, match="invalid datatype for input IN"):
        parsed(body(tensor([1], "INT99")), echo(DataType.INT32))


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, "But no field is set"),
        (
            {"data": [1], "parameters": {"binary_data_size": 4}},
            "But 'data' and 'binary_data_size' in 'parameters' are set",
        ),
    ],
)
def test_a_tensor_is_in_exactly_one_place(fields: dict[str, object], end: str) -> None:
    text = body({"name": "IN", "datatype": "INT32", "shape": [1], **fields})
    with pytest.raises(InvalidRequestError) as raised:
        parsed(text, echo(DataType.INT32))
    assert str(raised.value).endswith(end)


def test_parameters_keep_their_types() -> None:
    given = {"a": 1, "b": "x", "c": True, "d": 1.5, "e": 2**63, "sequence_id": "s"}
    request, _ = parsed(adder_body(parameters=given), adder())
    assert {k: parameter(v) for k, v in request.parameters.items()} == given
    assert request.parameters["e"].HasField("uint64_param")
    assert request.parameters["c"].HasField("bool_param")


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("priority", -1, "unsigned-integer"),
        ("timeout", "x", "unsigned-integer"),
        ("sequence_id", True, "unsigned-integer"),
        ("sequence_start", 1, "boolean"),
        ("sequence_end", "true", "boolean"),
        ("binary_data_output", 1, "boolean"),
    ],
)
def test_parameters_of_the_protocol_have_their_types(
    name: str, value: object, kind: str
) -> None:
    message = f"Unable to parse '{name}': attempt to access JSON non-{kind} as {kind}"
    with pytest.raises(InternalError, match=message):
        parsed(adder_body(parameters={name: value}), adder())


@pytest.mark.parametrize("value", [{"b": 1}, [1], None])
def test_a_parameter_is_a_scalar(value: object) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parsed(adder_body(parameters={"a": value}), adder())
    assert str(raised.value) == (
        "parameter 'a' has invalid type. It should be either 'int', 'bool', or "
        "'string'."
    )


@pytest.mark.parametrize("name", ["triton_x", "triton_final_response", "headers"])
def test_reserved_parameters_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="reserved"):
        parsed(adder_body(parameters={name: 1}), adder())


def test_outputs_say_how_they_want_to_be_sent() -> None:
    outputs = [
        {"name": "OUTPUT1", "parameters": {"binary_data": False}},
        {"name": "OUTPUT0", "parameters": {"classification": 3}},
    ]
    text = adder_body(outputs=outputs, parameters={"binary_data_output": True})
    request, plan = parsed(text, adder())
    assert [output.name for output in request.outputs] == ["OUTPUT1", "OUTPUT0"]
    assert request.outputs[1].parameters["classification"].int64_param == 3
    assert not request.parameters
    assert (plan.binary_by_default, plan.binary) == (True, {"OUTPUT1": False})


def test_no_class_at_all_is_no_classification() -> None:
    outputs = [{"name": "OUTPUT0", "parameters": {"classification": 0}}]
    request, _ = parsed(adder_body(outputs=outputs), adder())
    assert not request.outputs[0].parameters


@pytest.mark.parametrize("classes", [-1, 1.5, "2"])
def test_a_number_of_classes_is_unsigned(classes: object) -> None:
    outputs = [{"name": "OUTPUT0", "parameters": {"classification": classes}}]
    with pytest.raises(InternalError, match="Unable to set 'classification': attempt"):
        parsed(adder_body(outputs=outputs), adder())


def test_an_unknown_output_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parsed(adder_body(outputs=[{"name": "NOPE"}]), adder())
    assert str(raised.value) == "unexpected inference output 'NOPE' for model 'simple'"


def test_shared_memory_goes_on_to_admission() -> None:
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 64}
    at_an_offset = {**place, "shared_memory_offset": 64}
    text = body(
        {"name": "IN", "datatype": "INT32", "shape": [16], "parameters": place},
        outputs=[{"name": "OUT", "parameters": at_an_offset}],
    )
    request, plan = parsed(text, echo(DataType.INT32))
    sent = {k: parameter(v) for k, v in request.inputs[0].parameters.items()}
    wanted = {k: parameter(v) for k, v in request.outputs[0].parameters.items()}
    assert (sent, wanted) == (place, at_an_offset)
    assert plan.in_shared_memory == {"OUT"}
    assert not request.raw_input_contents


def test_a_compressed_body_is_read_and_the_answer_compressed_if_asked() -> None:
    headers = {"content-encoding": "gzip", "accept-encoding": "deflate"}
    request, plan = parsed(gzip.compress(adder_body()), adder(), headers)
    assert request.raw_input_contents[0] == INT32_16
    assert plan.encoding == "deflate"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (adder(), "Raw request must only have 1 input"),
        (echo(DataType.INT8), "failed to decompress"),
    ],
)
def test_a_damaged_body_is_refused_whatever_the_model(
    model: ModelView, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parsed(b"garbage", model, {"content-encoding": "gzip"})


def test_decoupled_models_answer_on_streams_only() -> None:
    config = ModelConfig(name="m", backend="python", decoupled=True)
    with pytest.raises(UnsupportedError, match="HTTP end point doesn't support"):
        parsed(b"", view(config))


def test_the_limit_holds_before_and_after_decompression_and_for_tensors() -> None:
    text = body(tensor([0] * 100, "FP64"))
    model = echo(DataType.FP64)
    assert len(text) < 800
    parse_infer(text, NOTHING, model, max_input_bytes=800)
    for limit in (799, len(text) - 1):
        with pytest.raises(InvalidRequestError, match="http-max-input-size"):
            parse_infer(text, NOTHING, model, max_input_bytes=limit)
    padded = text + b" " * 800
    with pytest.raises(InvalidRequestError, match="the request body has more"):
        parse_infer(padded, NOTHING, model, max_input_bytes=len(padded) - 1)
    small, headers = gzip.compress(text), {"content-encoding": "gzip"}
    with pytest.raises(InvalidRequestError, match="decompressed"):
        parse_infer(small, headers, model, max_input_bytes=len(text) - 1)


def test_a_body_may_have_as_many_bytes_as_the_limit() -> None:
    check_size(10, 10)
    with pytest.raises(InvalidRequestError, match="more than the 10 bytes"):
        check_size(11, 10)


MEMBERS = [
    *("inputs", "outputs", "name", "datatype", "shape", "data", "id"),
    *("parameters", "binary_data_size", "shared_memory_region"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(MEMBERS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["inputs", "outputs", "parameters"]), JSON))
def test_no_document_at_all_raises_anything_but_a_serving_error(
    document: dict[str, object],
) -> None:
    text = json.dumps({"inputs": [tensor([1])], **document}).encode()
    try:
        request = parse_infer(text, NOTHING, echo(DataType.INT32)).request
    except ServingError as error:
        str(error).encode()
    else:
        pb.ModelInferRequest.FromString(request)
