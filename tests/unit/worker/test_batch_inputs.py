"""Batch inputs: the examples of Triton's model_config.proto and user guide."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.datatype import DataType
from services.core.model_config import BatchInput, BatchInputKind
from services.worker.batch_inputs import batch_input

Kind = BatchInputKind


def declared(kind: Kind, datatype: DataType = DataType.INT32) -> BatchInput:
    return BatchInput(
        kind=kind, target_names=("t",), datatype=datatype, source_input="x"
    )


@pytest.mark.parametrize("datatype", [DataType.INT32, DataType.FP32])
@pytest.mark.parametrize(
    ("kind", "shapes", "expected"),
    [
        (Kind.ELEMENT_COUNT, [(1, 3), (1, 4), (1, 5)], [3, 4, 5]),
        (Kind.ACCUMULATED_ELEMENT_COUNT, [(1, 3), (1, 4), (1, 5)], [3, 7, 12]),
        (
            Kind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO,
            [(1, 3), (1, 4), (1, 5)],
            [0, 3, 7, 12],
        ),
        (Kind.ELEMENT_COUNT, [(2, 3), (1, 4)], [6, 4]),
        (Kind.ACCUMULATED_ELEMENT_COUNT, [(2, 3), (1, 4)], [6, 10]),
        (Kind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO, [(1, 0)], [0, 0]),
        (Kind.ITEM_SHAPE, [(2, 3, 1), (1, 2, 2)], [[3, 1], [3, 1], [2, 2]]),
        (Kind.ITEM_SHAPE, [(3, 7)], [[7], [7], [7]]),
        (Kind.ITEM_SHAPE_FLATTEN, [(2, 3, 1), (1, 2, 2)], [3, 1, 3, 1, 2, 2]),
    ],
)
def test_a_batch_is_described_as_triton_describes_it(
    kind: Kind,
    shapes: list[tuple[int, ...]],
    expected: list[object],
    datatype: DataType,
) -> None:
    array = batch_input(declared(kind, datatype), shapes)
    assert array.dtype == datatype.numpy_dtype
    assert array.tolist() == expected


def test_the_largest_count_is_told_by_the_shape_alone() -> None:
    array = batch_input(declared(Kind.MAX_ELEMENT_COUNT_AS_SHAPE), [(1, 3), (2, 4)])
    assert array.shape == (8,)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=1))
def test_the_kinds_agree_with_each_other(shapes: list[tuple[int, ...]]) -> None:
    counts, ends, bounds, flat, items = (
        batch_input(declared(kind), shapes)
        for kind in (
            Kind.ELEMENT_COUNT,
            Kind.ACCUMULATED_ELEMENT_COUNT,
            Kind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO,
            Kind.ITEM_SHAPE_FLATTEN,
            Kind.ITEM_SHAPE,
        )
    )
    assert np.diff(bounds).tolist() == counts.tolist()
    assert bounds[1:].tolist() == ends.tolist()
    assert items.reshape(-1).tolist() == flat.tolist()
    assert len(items) == sum(shape[0] for shape in shapes)
    assert items.sum() == counts.sum()
