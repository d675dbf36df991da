"""Buckets of durations: every one has its place, and quantiles are near the truth."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.latency_buckets import bucket_of, middle_of, quantile

DURATIONS = st.integers(min_value=0, max_value=2**63)


@given(DURATIONS)
def test_a_bucket_is_near_what_it_holds(ns: int) -> None:
    assert abs(middle_of(bucket_of(ns)) - ns) <= ns / 50


@given(DURATIONS, DURATIONS)
def test_buckets_are_in_the_order_of_their_values(a: int, b: int) -> None:
    assert (bucket_of(a) <= bucket_of(b)) or a > b


@pytest.mark.parametrize("ns", [0, 1, 31, 32, 63])
def test_small_durations_are_exact(ns: int) -> None:
    assert middle_of(bucket_of(ns)) == ns


def test_a_bucket_ends_where_the_next_one_begins() -> None:
    assert [bucket_of(ns) for ns in (63, 64, 65, 66, 127, 128)] == [
        *(63, 64, 64, 65, 95, 96)
    ]


@given(st.lists(DURATIONS, min_size=1), st.floats(min_value=0, max_value=1))
def test_a_quantile_lies_between_the_extremes(
    durations: list[int], fraction: float
) -> None:
    found = quantile(Counter(map(bucket_of, durations)), fraction)
    assert found is not None
    assert min(durations) * 0.98 <= found <= max(durations) * 1.02


def test_a_quantile_is_the_value_that_so_many_do_not_exceed() -> None:
    counts = Counter(map(bucket_of, range(1, 51)))
    assert [quantile(counts, fraction) for fraction in (0, 0.5, 0.9, 1)] == [
        *(1, 25, 45, 50)
    ]
    assert quantile({}, 0.5) is None
