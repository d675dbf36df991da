"""Outputs as the labels of their largest elements."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core import byte_tensor
from services.core.datatype import DataType
from services.core.errors import InvalidRequestError
from services.worker.classification import classify


def strings(
    values: list[float],
    datatype: DataType = DataType.FP32,
    *,
    rows: int = 1,
    class_count: int = 2,
    labels: tuple[str, ...] = (),
) -> list[str]:
    raw = np.array(values, datatype.numpy_dtype).tobytes()
    count, found = classify(
        raw, datatype, rows=rows, class_count=class_count, labels=labels
    )
    decoded = [element.decode() for element in byte_tensor.decode(found)]
    assert len(decoded) == rows * count
    return decoded


def test_the_largest_come_first_with_index_and_label() -> None:
    found = strings([0.1, 0.9, 0.3, 0.3], labels=("cat", "dog", "bird", "fish"))
    assert found == ["0.900000:1:dog", "0.300000:2:bird"]


def test_integers_are_written_plain_and_without_labels() -> None:
    assert strings([-3, 17, 5], DataType.INT32) == ["17:1", "5:2"]
    assert strings([0, 2**64 - 1], DataType.UINT64) == [f"{2**64 - 1}:1", "0:0"]
    assert strings([-128, 127], DataType.INT8) == ["127:1", "-128:0"]


def test_each_row_has_classes_of_its_own() -> None:
    found = strings([1, 2, 4, 3], rows=2, class_count=1, labels=("a", "b"))
    assert found == ["2.000000:1:b", "4.000000:0:a"]


def test_more_classes_than_elements_are_all_of_them() -> None:
    assert strings([1, 2], class_count=9) == ["2.000000:1", "1.000000:0"]


def test_elements_behind_the_last_label_have_none() -> None:
    assert strings([1, 2], labels=("one",)) == ["2.000000:1", "1.000000:0:one"]
    assert strings([1, 2], labels=("one", "")) == ["2.000000:1", "1.000000:0:one"]


def test_what_is_no_number_comes_last() -> None:
    found = strings([float("nan"), 1, float("-inf")], class_count=3)
    assert found[0] == "1.000000:1"
    assert {one.split(":")[1] for one in found[1:]} == {"0", "2"}


def test_no_rows_have_no_classes() -> None:
    assert strings([], rows=0) == []


@pytest.mark.parametrize(
    "datatype", [DataType.BYTES, DataType.BOOL, DataType.FP16, DataType.BF16]
)
def test_elements_without_an_order_are_refused(datatype: DataType) -> None:
    with pytest.raises(InvalidRequestError, match=f"type '{datatype.value}'"):
        classify(b"\0\0", datatype, rows=1, class_count=1, labels=())


@given(st.lists(st.integers(-9, 9), min_size=1), st.integers(1, 9))
def test_no_element_left_out_is_larger_than_one_shown(
    values: list[int], class_count: int
) -> None:
    found = strings(list(values), DataType.INT64, class_count=class_count)
    pairs = [tuple(map(int, one.split(":"))) for one in found]
    indexed = sorted(((-value, index) for index, value in enumerate(values)))
    assert pairs == [(-value, index) for value, index in indexed[:class_count]]
