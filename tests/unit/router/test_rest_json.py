import contextlib
import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import InternalError, InvalidRequestError, ServingError
from services.router import rest_json

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "The document is empty. at 0"),
        (b" \n", "The document is empty. at 0"),
        (b"{bad", "Missing a name for object member. at 1"),
        (b'{"a" 1}', "Missing a colon after a name of object member. at 5"),
        (b'{"a":1 2}', "Missing a comma or } after an object member. at 7"),
        (b"[1 2]", "Missing a comma or ] after an array element. at 3"),
        (b'["}" 2]', "Missing a comma or ] after an array element. at 5"),
        (b"[1,", "Invalid value. at 3"),
        (b"nul", "Invalid value. at 0"),
        (b"{}x", "The document root must not be followed by other values. at 2"),
        (b'"abc', "Missing a closing quotation mark in string. at 0"),
        (b'"\\x"', "Invalid escape character in string. at 1"),
        (b'["\\ud800"]', "The surrogate pair in string is invalid. at 2"),
        (b"[1e400]", "Number too big to be stored in double. at 0"),
        (b"9" * 5000, "Number too big to be stored in double. at 0"),
    ],
)
def test_what_is_no_json_is_told_in_the_words_of_triton(
    text: bytes, reason: str
) -> None:
    with pytest.raises(InternalError) as raised:
        rest_json.parse(text)
    assert str(raised.value) == f"failed to parse the request JSON buffer: {reason}"


def test_the_offset_counts_bytes_not_characters() -> None:
    with pytest.raises(InternalError, match=r"at 6$"):
        rest_json.parse('["é" 1]'.encode())


def test_a_hundred_levels_are_accepted_and_one_more_is_refused() -> None:
    rest_json.parse(b"[" * 100 + b"]" * 100)
    rest_json.parse(b"[[]," + b"[" * 99 + b"]" * 100)
    with pytest.raises(InvalidRequestError, match=r"maximum allowed limit \(100\)"):
        rest_json.parse(b"[" * 101 + b"]" * 101)


def test_objects_count_as_levels() -> None:
    text = b'{"a":' * 101 + b"1" + b"}" * 101
    with pytest.raises(InvalidRequestError, match="nesting depth"):
        rest_json.parse(text)


def test_many_brackets_side_by_side_are_no_depth() -> None:
    assert rest_json.parse(b"[" + b"[]," * 500 + b"1]") == [*[[]] * 500, 1]


def test_brackets_in_strings_neither_add_nor_hide_depth() -> None:
    assert rest_json.parse(b'["' + b"[" * 300 + b'"]') == ["[" * 300]
    hidden = b'["' + b"]" * 300 + b'",' + b"[" * 101 + b"]" * 102
    with pytest.raises(InvalidRequestError, match="nesting depth"):
        rest_json.parse(hidden)


def test_an_unfinished_abyss_is_refused_without_a_recursion() -> None:
    with pytest.raises(ServingError):
        rest_json.parse(b"[" * 1_000_000)


def test_the_words_for_what_is_no_number_are_numbers() -> None:
    parsed = rest_json.parse(b"[NaN,Infinity,-Infinity]")
    assert isinstance(parsed, list)
    assert math.isnan(parsed[0])
    assert parsed[1:] == [math.inf, -math.inf]


def test_bytes_that_are_no_utf8_survive_in_strings() -> None:
    parsed = rest_json.parse(b'["\xff"]')
    assert isinstance(parsed, list)
    assert parsed[0].encode(errors="surrogateescape") == b"\xff"


@given(JSON_VALUES)
def test_a_parsed_document_is_what_was_written(value: object) -> None:
    text = orjson.dumps(value)
    assert rest_json.parse(memoryview(text)) == value


@given(st.binary(max_size=40))
def test_no_bytes_at_all_raise_anything_but_a_serving_error(text: bytes) -> None:
    with contextlib.suppress(ServingError):
        rest_json.parse(text)


@pytest.mark.parametrize("value", [True, -1, 1.0, "1", None, 2**64])
def test_only_integers_from_zero_to_two_to_the_64th_are_unsigned(
    value: object,
) -> None:
    with pytest.raises(InternalError, match="non-unsigned-integer"):
        rest_json.unsigned(value, "shape")


def test_the_largest_unsigned_is_one() -> None:
    assert rest_json.unsigned(2**64 - 1, "shape") == 2**64 - 1


def test_a_name_must_be_text() -> None:
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        rest_json.string("\udcff", "name")
