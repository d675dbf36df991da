import pytest
from google.api import httpbody_pb2

from protos import rest_pb2
from services.core.errors import InvalidRequestError
from services.router.rest_http_body import (
    RestCall,
    check_complete,
    decode_call,
    encode_pieces,
    encode_reply,
)
from services.router.rest_response import HttpReply

HttpBody = httpbody_pb2.HttpBody


def test_a_call_has_what_the_path_named_and_the_body() -> None:
    message = rest_pb2.RestRequest(
        model_name="m",
        model_version="1",
        region_name="r",
        repository_name="p",
        body=HttpBody(content_type="text/plain", data=b"abc"),
    )
    call = RestCall(model="m", version="1", region="r", repository="p", body=b"abc")
    assert decode_call(message.SerializeToString()) == call


def test_bytes_that_are_no_call_are_refused() -> None:
    for message in (b"\xff", b"\x0a\x01\xff"):
        with pytest.raises(InvalidRequestError, match="Unable to parse request"):
            decode_call(message)


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v2/models/simp%6Ce", "simp%6Ce"),
        ("/v2/repository/models/a%20b/load", "a%20b"),
        ("/v2/models/simple/infer?a=%20", "simple"),
        ("/v2/models/simple", "simple"),
        ("/v2/systemsharedmemory/region/a%20b/status", "simple"),
        ("", "simple"),
    ],
)
def test_percent_signs_are_part_of_a_name(path: str, model: str) -> None:
    message = rest_pb2.RestRequest(model_name="simple").SerializeToString()
    assert decode_call(message, path).model == model


def test_a_reply_is_one_http_body() -> None:
    message = encode_reply(HttpReply(content_type="text/plain", body=b"abc"))
    assert HttpBody.FromString(message) == HttpBody(
        content_type="text/plain", data=b"abc"
    )


@pytest.mark.parametrize(
    ("size", "pieces"), [(0, [0]), (4, [4]), (5, [4, 1]), (8, [4, 4])]
)
def test_a_long_reply_is_cut_into_pieces(size: int, pieces: list[int]) -> None:
    reply = HttpReply(content_type="a/b", body=bytes(range(size)))
    messages = [HttpBody.FromString(m) for m in encode_pieces(reply, piece_bytes=4)]
    assert [len(message.data) for message in messages] == pieces
    assert b"".join(message.data for message in messages) == reply.body
    assert messages[0].content_type == "a/b"


@pytest.mark.parametrize("promised", ["", "3", "nonsense"])
def test_a_whole_body_is_complete(promised: str) -> None:
    check_complete({"x-content-length": promised}, 3)
    check_complete({}, 3)


@pytest.mark.parametrize("promised", ["4", "2"])
def test_a_body_of_another_size_than_promised_is_not(promised: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"has 3 bytes.*Length is {promised}"):
        check_complete({"x-content-length": promised}, 3)
