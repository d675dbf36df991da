"""Requests parsed without the contents that may be huge."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import InternalError
from services.router.request_split import split_request
from tests.unit.router.routes import Request, add_sub_request

LARGE = 1 << 15


def assert_split_as_protobuf_reads_it(body: bytes) -> None:
    expected = Request.FromString(body)
    request, raws = split_request(body)
    assert [bytes(raw) for raw in raws] == list(expected.raw_input_contents)
    del expected.raw_input_contents[:]
    assert request == expected


@given(st.lists(st.integers(0, LARGE), max_size=3), st.text(max_size=3))
def test_a_request_is_split_as_protobuf_reads_it(sizes: list[int], name: str) -> None:
    raws = [bytes([index]) * size for index, size in enumerate(sizes)]
    request = add_sub_request(raw_input_contents=raws, id=name)
    assert_split_as_protobuf_reads_it(request.SerializeToString())


def test_fields_behind_and_between_the_contents_belong_to_the_request() -> None:
    first = Request(raw_input_contents=[bytes(LARGE)]).SerializeToString()
    body = first + add_sub_request(id="7").SerializeToString() + first
    assert_split_as_protobuf_reads_it(body + b"\x1a\x01x")


@pytest.mark.parametrize(
    "unusual",
    [
        b"\xba\x00\x02ab",  # the tag in more bytes than it needs
        b"\x38\x05",  # another wire type: an unknown field to protobuf
        b"\x7b\x7c",  # a group, which only protobuf skips
    ],
)
def test_what_is_unusual_is_left_to_protobuf(unusual: bytes) -> None:
    body = add_sub_request(raw_input_contents=[bytes(LARGE)]).SerializeToString()
    assert_split_as_protobuf_reads_it(body + unusual)
    assert_split_as_protobuf_reads_it(unusual + body)


@pytest.mark.parametrize("size", [100, LARGE])
def test_what_protobuf_cannot_read_is_refused(size: int) -> None:
    body = add_sub_request(raw_input_contents=[bytes(size)]).SerializeToString()
    for damaged in (body[:-1], body + b"\x0a", body + b"\xff\xff"):
        with pytest.raises(InternalError, match="Unable to parse request"):
            split_request(damaged)


def test_large_contents_are_not_copied() -> None:
    body = add_sub_request(raw_input_contents=[bytes(LARGE)] * 2).SerializeToString()
    _, raws = split_request(body)
    assert all(isinstance(raw, memoryview) and raw.obj is body for raw in raws)
