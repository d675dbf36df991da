import math
import struct

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.datatype import DataType
from services.core.errors import InternalError, InvalidRequestError
from services.router.rest_tensor import json_elements, raw_bytes

MIB = 1 << 20
INTEGERS = {
    DataType.INT8: (-(2**7), 2**7 - 1),
    DataType.INT16: (-(2**15), 2**15 - 1),
    DataType.INT32: (-(2**31), 2**31 - 1),
    DataType.INT64: (-(2**63), 2**63 - 1),
    DataType.UINT8: (0, 2**8 - 1),
    DataType.UINT16: (0, 2**16 - 1),
    DataType.UINT32: (0, 2**32 - 1),
    DataType.UINT64: (0, 2**64 - 1),
}


def raw(data: object, datatype: DataType, count: int, max_bytes: int = MIB) -> bytes:
    return raw_bytes(data, datatype, count, tensor_name="IN", max_bytes=max_bytes)


def printed(content: bytes, datatype: DataType) -> bytes:
    elements = json_elements(content, datatype)
    return orjson.dumps(elements, option=orjson.OPT_SERIALIZE_NUMPY)


@pytest.mark.parametrize(("datatype", "bounds"), INTEGERS.items())
def test_integers_fit_up_to_their_bounds_and_are_never_wrapped(
    datatype: DataType, bounds: tuple[int, int]
) -> None:
    low, high = bounds
    content = raw([low, high], datatype, 2)
    assert np.frombuffer(content, datatype.numpy_dtype).tolist() == [low, high]
    assert printed(content, datatype) == orjson.dumps([low, high])
    for beyond in (low - 1, high + 1):
        with pytest.raises(InvalidRequestError, match=f"datatype {datatype.value}"):
            raw([beyond], datatype, 1)


@pytest.mark.parametrize("wrong", [True, 1.0, 1e20, "7", None, {}])
@pytest.mark.parametrize(
    ("datatype", "kind"), [("INT32", "signed-integer"), ("UINT8", "unsigned-integer")]
)
def test_only_integers_are_integers(datatype: str, kind: str, wrong: object) -> None:
    message = f"^Unable to parse 'data': attempt to access JSON non-{kind} as {kind}$"
    with pytest.raises(InternalError, match=message):
        raw([1, wrong], DataType.from_protocol(datatype), 2)


@pytest.mark.parametrize("wrong", [1, 0.0, "true", None])
def test_only_true_and_false_are_booleans(wrong: object) -> None:
    assert raw([True, False], DataType.BOOL, 2) == b"\1\0"
    with pytest.raises(InternalError, match="non-boolean as boolean"):
        raw([True, wrong], DataType.BOOL, 2)


@pytest.mark.parametrize("wrong", [True, "1", None])
def test_only_numbers_are_floats(wrong: object) -> None:
    assert raw([1, 2.5], DataType.FP32, 2) == struct.pack("<2f", 1, 2.5)
    with pytest.raises(InternalError, match="non-number as double"):
        raw([1.0, wrong], DataType.FP64, 2)


def test_a_number_beyond_fp32_is_refused_but_infinity_is_one() -> None:
    assert raw([math.inf], DataType.FP32, 1) == struct.pack("<f", math.inf)
    with pytest.raises(InvalidRequestError, match="out of the range"):
        raw([3.5e38], DataType.FP32, 1)
    with pytest.raises(InvalidRequestError, match="out of the range"):
        raw([10**400], DataType.FP64, 1)


@pytest.mark.parametrize("wrong", [1, None, True, ["a", 2]])
def test_only_strings_are_bytes(wrong: object) -> None:
    with pytest.raises(InternalError, match="non-string as string"):
        raw(["a", wrong], DataType.BYTES, 2)


def test_strings_become_utf8_behind_their_lengths() -> None:
    assert raw(["é", ""], DataType.BYTES, 2) == b"\2\0\0\0\xc3\xa9\0\0\0\0"


@pytest.mark.parametrize(
    "data", [[1, 2, 3, 4], [[1, 2], [3, 4]], [[[1], 2], 3, [[], [4]]]]
)
def test_data_may_be_nested_in_any_way(data: list[object]) -> None:
    assert raw(data, DataType.UINT8, 4) == b"\1\2\3\4"


@pytest.mark.parametrize("data", [[], [1], [1, 2, 3], [[]]])
@pytest.mark.parametrize("datatype", ["INT32", "BYTES"])
def test_another_number_of_elements_than_the_shape_says_is_refused(
    data: list[object], datatype: str
) -> None:
    texts = (
        [str(value) for value in data if value != []] if datatype == "BYTES" else data
    )
    with pytest.raises(InternalError, match="Shape does not match true shape"):
        raw(texts, DataType.from_protocol(datatype), 2)


@pytest.mark.parametrize("data", [5, "ab", {}, None])
def test_data_must_be_an_array(data: object) -> None:
    with pytest.raises(InternalError, match="non-array as array"):
        raw(data, DataType.INT32, 1)


def test_no_elements_are_no_bytes() -> None:
    for datatype in (DataType.INT32, DataType.BOOL, DataType.BYTES):
        assert raw([], datatype, 0) == b""
        assert printed(b"", datatype) == b"[]"


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.BF16])
def test_half_floats_have_no_json(datatype: DataType) -> None:
    name = datatype.value
    with pytest.raises(InvalidRequestError) as received:
        raw([1.0], datatype, 1)
    assert str(received.value) == (
        f"receiving {name} data via JSON is not supported. Please use the binary data "
        "format for input IN"
    )
    with pytest.raises(InvalidRequestError) as sent:
        json_elements(b"\0\0", datatype)
    assert str(sent.value) == (
        f"sending {name} data via JSON is not supported. Please use the binary data "
        "format for output"
    )


def test_a_tensor_may_be_as_large_as_the_limit_and_no_larger() -> None:
    assert len(raw([0] * 4, DataType.INT64, 4, max_bytes=32)) == 32
    with pytest.raises(InvalidRequestError, match="more than the 31"):
        raw([0] * 4, DataType.INT64, 4, max_bytes=31)
    assert len(raw(["abc"], DataType.BYTES, 1, max_bytes=7)) == 7
    with pytest.raises(InvalidRequestError, match="has 7 bytes, more than the 6"):
        raw(["abc"], DataType.BYTES, 1, max_bytes=6)


def test_an_absurd_shape_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(InvalidRequestError, match="more than"):
        raw([1], DataType.INT32, 2**64)


def test_floats_are_printed_as_the_doubles_they_are() -> None:
    content = struct.pack("<3f", 0.1, 1, -25000000000.0)
    assert (
        printed(content, DataType.FP32) == b"[0.10000000149011612,1.0,-24999999488.0]"
    )


def test_what_is_no_number_is_printed_as_a_word() -> None:
    content = struct.pack("<4f", math.nan, math.inf, -math.inf, 1.5)
    assert printed(content, DataType.FP32) == b"[NaN,Infinity,-Infinity,1.5]"
    for value, word in ((math.nan, b"[NaN]"), (math.inf, b"[Infinity]")):
        assert printed(struct.pack("<d", value), DataType.FP64) == word


def test_any_byte_but_zero_is_true() -> None:
    assert printed(b"\0\1\2", DataType.BOOL) == b"[false,true,true]"


def test_bytes_that_are_no_utf8_are_printed_as_they_are() -> None:
    content = b"\2\0\0\0\xff\0"
    assert printed(content, DataType.BYTES) == b'["\xff\\u0000"]'


@given(st.lists(st.floats(allow_nan=False)))
def test_doubles_come_back_as_they_went(values: list[float]) -> None:
    content = raw(values, DataType.FP64, len(values))
    assert content == struct.pack(f"<{len(values)}d", *values)
    if all(map(math.isfinite, values)):
        assert orjson.loads(printed(content, DataType.FP64)) == values


@given(st.lists(st.text()))
def test_texts_come_back_as_they_went(values: list[str]) -> None:
    content = raw(values, DataType.BYTES, len(values))
    assert orjson.loads(printed(content, DataType.BYTES)) == values
