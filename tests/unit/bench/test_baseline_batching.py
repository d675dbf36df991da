"""The baseline answers each request with its own rows."""

from protos import inference_pb2 as pb
from tests.bench.baseline_aio.batching import join, rows_of, split


def request(identifier: str, *rows: bytes) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(
        model_name="m", id=identifier, raw_input_contents=[b"".join(rows)]
    )
    made.inputs.add(name="IN", datatype="UINT8", shape=[len(rows), 2])
    return made


def test_joined_requests_are_one_request_with_all_rows() -> None:
    joined = join([request("a", b"01"), request("b", b"23", b"45")])
    assert rows_of(joined) == 3
    assert list(joined.raw_input_contents) == [b"012345"]
    assert joined.inputs[0].name == "IN"


def test_a_split_response_gives_each_request_its_rows_and_its_id() -> None:
    requests = [
        request("a", b"01"),
        request("b", b"23", b"45"),
        request("c", b"67"),
    ]
    response = pb.ModelInferResponse(
        model_name="m", model_version="1", raw_output_contents=[b"abcdefghijkl"]
    )
    response.outputs.add(name="OUT", datatype="UINT8", shape=[4, 3])
    first, second, third = split(response, requests)
    assert (first.id, list(first.raw_output_contents)) == ("a", [b"abc"])
    assert (second.id, list(second.raw_output_contents)) == ("b", [b"defghi"])
    assert (third.id, list(third.raw_output_contents)) == ("c", [b"jkl"])
    assert list(second.outputs[0].shape) == [2, 3]
