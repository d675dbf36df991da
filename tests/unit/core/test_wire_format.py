"""Protobuf's wire format, written and read by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import worker_pb2
from services.core.wire_format import (
    WireFormatError,
    aligned_length_prefix,
    decode_varint,
    encode_varint,
    length_prefix,
    skip_field,
)


@given(st.integers(0, 2**64 - 1))
def test_a_varint_is_read_as_it_was_written(value: int) -> None:
    encoded = encode_varint(value)
    assert decode_varint(b"x" + encoded + b"y", 1) == (value, 1 + len(encoded))


@pytest.mark.parametrize("text", [b"", b"\x80", b"\x80" * 10, b"\x80" * 10 + b"\0"])
def test_a_varint_without_an_end_is_refused(text: bytes) -> None:
    with pytest.raises(WireFormatError):
        decode_varint(text, 0)


@given(st.integers(0, 2**31 - 1), st.sampled_from([1, 2, 4]))
def test_an_aligned_prefix_says_the_same_and_ends_in_step(
    length: int, step: int
) -> None:
    prefix = aligned_length_prefix(2, length, step)
    assert (len(prefix) + length) % step == 0
    assert prefix[0] == length_prefix(2, length)[0]
    assert decode_varint(prefix, 1) == (length, len(prefix))
    assert len(prefix) <= len(length_prefix(2, length)) + step - 1


@given(st.binary(max_size=300))
def test_protobuf_itself_reads_an_aligned_prefix(body: bytes) -> None:
    message = aligned_length_prefix(2, len(body), 4) + body
    assert list(worker_pb2.BatchRequest.FromString(message).request) == [body]
    assert skip_field(message, 0) == (2, len(message))
