import gzip
import struct
import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import inference_pb2 as pb
from services.core.errors import InvalidRequestError
from services.router.rest_plan import ReplyPlan
from services.router.rest_response import encode_infer

OutputTensor = pb.ModelInferResponse.InferOutputTensor
PLAIN = ReplyPlan()
BINARY = ReplyPlan(binary_by_default=True)


def response(
    *outputs: tuple[str, str, list[int], bytes], **fields: object
) -> pb.ModelInferResponse:
    return pb.ModelInferResponse(
        model_name="m",
        model_version="1",
        outputs=[
            OutputTensor(name=name, datatype=datatype, shape=shape)
            for name, datatype, shape, _ in outputs
        ],
        raw_output_contents=[raw for *_, raw in outputs],
        **fields,  # type: ignore[arg-type]
    )


INTS = ("I", "INT32", [1, 2], struct.pack("<2i", 1, -2))
TEXTS = ("T", "BYTES", [2], b"\2\0\0\0ab\0\0\0\0")
HALF = ("H", "FP16", [1], b"\0\x3c")


def test_json_has_the_members_in_the_order_of_triton() -> None:
    message = response(INTS, TEXTS, id="7")
    reply = encode_infer(message.SerializeToString(), PLAIN)
    assert reply.body == (
        b'{"id":"7","model_name":"m","model_version":"1","outputs":['
        b'{"name":"I","datatype":"INT32","shape":[1,2],"data":[1,-2]},'
        b'{"name":"T","datatype":"BYTES","shape":[2],"data":["ab",""]}]}'
    )
    assert (reply.content_type, reply.headers) == ("application/json", ())


def test_binary_outputs_follow_the_json_which_tells_their_sizes() -> None:
    message = response(INTS, TEXTS)
    reply = encode_infer(message.SerializeToString(), BINARY)
    text = (
        b'{"model_name":"m","model_version":"1","outputs":['
        b'{"name":"I","datatype":"INT32","shape":[1,2],'
        b'"parameters":{"binary_data_size":8}},'
        b'{"name":"T","datatype":"BYTES","shape":[2],'
        b'"parameters":{"binary_data_size":10}}]}'
    )
    assert reply.body == text + INTS[3] + TEXTS[3]
    assert reply.content_type == "application/octet-stream"
    assert reply.headers == (("inference-header-content-length", str(len(text))),)


@pytest.mark.parametrize(
    "plan",
    [
        ReplyPlan(binary={"T": True}),
        ReplyPlan(binary_by_default=True, binary={"I": False}),
    ],
)
def test_each_output_goes_as_it_was_asked_for(plan: ReplyPlan) -> None:
    reply = encode_infer(response(INTS, TEXTS).SerializeToString(), plan)
    length = int(reply.headers[0][1])
    outputs = orjson.loads(reply.body[:length])["outputs"]
    assert outputs[0]["data"] == [1, -2]
    assert outputs[1]["parameters"] == {"binary_data_size": 10}
    assert reply.body[length:] == TEXTS[3]


def test_half_floats_go_as_binary_only() -> None:
    message = response(HALF).SerializeToString()
    assert encode_infer(message, BINARY).body.endswith(HALF[3])
    with pytest.raises(InvalidRequestError, match="sending FP16 data via JSON"):
        encode_infer(message, PLAIN)


def test_parameters_of_the_response_stand_before_the_outputs() -> None:
    values = {
        "a": pb.InferParameter(int64_param=0),
        "b": pb.InferParameter(bool_param=False),
        "c": pb.InferParameter(string_param="x"),
        "d": pb.InferParameter(double_param=1.5),
        "e": pb.InferParameter(uint64_param=2**64 - 1),
    }
    message = response(INTS, parameters=values)
    text = encode_infer(message.SerializeToString(), PLAIN).body
    assert b'"1","parameters":{"a":0,"b":false,"c":"x","d":1.5,"e":18446' in text


@pytest.mark.parametrize("with_contents", [True, False])
def test_outputs_in_shared_memory_are_only_described(*, with_contents: bool) -> None:
    message = response(INTS, TEXTS)
    if not with_contents:
        del message.raw_output_contents[0]
    plan = ReplyPlan(in_shared_memory=frozenset({"I"}))
    outputs = orjson.loads(encode_infer(message.SerializeToString(), plan).body)[
        "outputs"
    ]
    assert outputs[0] == {"name": "I", "datatype": "INT32", "shape": [1, 2]}
    assert outputs[1]["data"] == ["ab", ""]


def test_no_elements_are_an_empty_list() -> None:
    message = response(("E", "FP32", [0], b""), ("T", "BYTES", [0], b""))
    outputs = orjson.loads(encode_infer(message.SerializeToString(), PLAIN).body)
    assert [output["data"] for output in outputs["outputs"]] == [[], []]


def test_the_header_length_is_that_of_the_decompressed_body() -> None:
    message = response(INTS).SerializeToString()
    plain = encode_infer(message, BINARY)
    zipped = encode_infer(message, ReplyPlan(binary_by_default=True, encoding="gzip"))
    deflated = encode_infer(message, ReplyPlan(encoding="deflate"))
    assert gzip.decompress(zipped.body) == plain.body
    assert zipped.headers == (*plain.headers, ("content-encoding", "gzip"))
    assert zlib.decompress(deflated.body) == encode_infer(message, PLAIN).body


@given(st.integers(0, 40_000), st.integers(0, 40_000))
def test_large_and_small_responses_are_cut_alike(first: int, second: int) -> None:
    outputs = (
        ("A", "UINT8", [first], bytes(first)),
        ("B", "UINT8", [second], b"\1" * second),
    )
    reply = encode_infer(response(*outputs, id="x").SerializeToString(), BINARY)
    length = int(reply.headers[0][1])
    assert orjson.loads(reply.body[:length])["id"] == "x"
    assert reply.body[length:] == bytes(first) + b"\1" * second
