import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core import byte_tensor
from services.core.errors import InvalidRequestError

elements_of_any_length = st.lists(st.binary(max_size=20), max_size=8)


def refusal(buffer: bytes, element_count: int) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        byte_tensor.validate(
            buffer,
            element_count,
            tensor_name="INPUT0",
            model_name="m",
            prefix="[request id: 7] ",
        )
    return str(caught.value)


def accept(buffer: bytes | memoryview, element_count: int) -> None:
    byte_tensor.validate(buffer, element_count, tensor_name="INPUT0", model_name="m")


def test_an_element_is_its_length_and_its_bytes() -> None:
    encoded = byte_tensor.encode([b"ab", b"", "é"])
    assert encoded == b"\x02\x00\x00\x00ab\x00\x00\x00\x00\x02\x00\x00\x00\xc3\xa9"


def test_no_elements_are_no_bytes() -> None:
    assert byte_tensor.encode([]) == b""
    assert byte_tensor.decode(b"") == []
    accept(b"", 0)


@given(elements_of_any_length)
def test_what_was_encoded_is_decoded_and_valid(elements: list[bytes]) -> None:
    encoded = byte_tensor.encode(elements)
    assert byte_tensor.decode(encoded) == elements
    assert byte_tensor.decode(memoryview(encoded)) == elements
    accept(encoded, len(elements))
    accept(memoryview(encoded), len(elements))


@given(elements_of_any_length, st.integers(0, 10))
def test_only_the_right_element_count_is_accepted(
    elements: list[bytes], element_count: int
) -> None:
    encoded = byte_tensor.encode(elements)
    if element_count == len(elements):
        accept(encoded, element_count)
    else:
        assert "string elements" in refusal(encoded, element_count)


@given(st.binary(max_size=24), st.integers(0, 6))
def test_validation_accepts_exactly_what_decodes_to_the_count(
    buffer: bytes, element_count: int
) -> None:
    try:
        decodes = len(byte_tensor.decode(buffer)) == element_count
    except InvalidRequestError:
        decodes = False
    if decodes:
        accept(buffer, element_count)
    else:
        assert refusal(buffer, element_count)


def test_too_few_elements_are_refused() -> None:
    assert refusal(b"\x01\x00\x00\x00a", 2) == (
        "[request id: 7] expected 2 string elements"
        " for inference input 'INPUT0' for model 'm', got 1"
    )


def test_too_many_elements_are_refused_at_the_first_one() -> None:
    assert refusal(byte_tensor.encode([b"a", b"c", b"d"]), 1) == (
        "[request id: 7] unexpected number of string elements 2"
        " for inference input 'INPUT0' for model 'm', expecting 1"
    )


def test_an_element_for_an_empty_tensor_is_refused() -> None:
    assert refusal(b"\x00\x00\x00\x00", 0) == (
        "[request id: 7] unexpected number of string elements 1"
        " for inference input 'INPUT0' for model 'm', expecting 0"
    )


@pytest.mark.parametrize(("content", "available"), [(b"", 0), (b"ab", 2)])
def test_a_cut_off_element_is_refused_without_prefix_or_model(
    content: bytes, available: int
) -> None:
    assert refusal(b"\x03\x00\x00\x00" + content, 1) == (
        "incomplete string data for inference input 'INPUT0',"
        f" expecting string of length 3 but only {available} bytes available"
    )


def test_an_element_that_just_fits_is_accepted() -> None:
    accept(b"\x03\x00\x00\x00abc", 1)


def test_the_largest_length_is_refused_not_allocated() -> None:
    assert "length 4294967295 but only 1" in refusal(b"\xff\xff\xff\xffa", 1)


@pytest.mark.parametrize("available", [1, 2, 3])
def test_a_cut_off_length_is_refused(available: int) -> None:
    assert refusal(bytes(available), 1) == (
        "[request id: 7] incomplete string length indicator"
        " for inference input 'INPUT0' for model 'm', expecting 4 bytes but only"
        f" {available} bytes available."
        " Please make sure the string length indicator is in one buffer."
    )


def test_decoding_a_cut_off_length_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="length indicator"):
        byte_tensor.decode(b"\x00\x00\x00\x00\x00")


def test_decoding_a_cut_off_element_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="length 2 but only 1"):
        byte_tensor.decode(b"\x02\x00\x00\x00a")
