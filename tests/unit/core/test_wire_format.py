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
    split_fields,
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


@given(st.binary(max_size=300), st.text(max_size=20), st.integers(0, 2**63 - 1))
def test_a_message_falls_into_its_fields(
    raw: bytes, text: str, generation: int
) -> None:
    hello = worker_pb2.InstanceHello(
        worker_id="w", device=text, generation=generation, instance_name="n"
    )
    reply = worker_pb2.BatchRequest(request=[raw, b"", raw])
    message = hello.SerializeToString() + reply.SerializeToString()
    fields = split_fields(message)
    assert [start for _, start, _, _ in fields[1:]] == [end for *_, end in fields[:-1]]
    assert fields[-1][3] == len(message)
    contents = [message[content:end] for n, _, content, end in fields if n == 2]
    assert contents == [raw, b"", raw]
    found = {n: message[content:end] for n, _, content, end in fields}
    assert found.get(6, b"").decode() == text
    assert decode_varint(found.get(4, b"\0"), 0)[0] == generation


@pytest.mark.parametrize(
    "text",
    [b"\x0a", b"\x0a\x05abcd", b"\x0a\x80", b"\x0b", b"\x0d\0\0\0", b"\x08"],
    ids=["no length", "short", "open length", "group", "short fixed", "no varint"],
)
def test_a_message_that_ends_too_early_is_refused(text: bytes) -> None:
    with pytest.raises(WireFormatError):
        split_fields(b"\x0a\x01a" + text)


def test_fields_of_every_kind_and_number_are_split() -> None:
    text = b"\x08\x96\x01" + b"\x0d\1\2\3\4" + b"\x09" + bytes(8) + b"\x82\x01\x01a"
    assert split_fields(text) == [
        (1, 0, 1, 3),
        (1, 3, 4, 8),
        (1, 8, 9, 17),
        (16, 17, 20, 21),
    ]
