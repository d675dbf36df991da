"""Which requests are traced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.trace_sampler import (
    TraceSampler,
    TraceScope,
    TraceSettings,
    is_sampled,
)

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = SAMPLED[:-1] + "0"


def sampler_of(
    overall: TraceScope, *, follows_callers: bool = False, **models: TraceScope
) -> TraceSampler:
    sampler = TraceSampler()
    sampler.follow(
        TraceSettings(overall=overall, models=models, follows_callers=follows_callers)
    )
    return sampler


def picked(sampler: TraceSampler, count: int, model: str = "m") -> list[int]:
    """Return which of the next ``count`` requests are traced, counted from 1."""
    return [n for n in range(1, count + 1) if sampler.sample(model) is not None]


def test_at_first_nothing_is_traced() -> None:
    sampler = TraceSampler()
    assert not sampler.is_on_for("m")
    assert picked(sampler, 3) == []


def test_one_of_rate_is_traced_the_last_of_them() -> None:
    assert picked(sampler_of(TraceScope(session=1, rate=3)), 7) == [3, 6]


def test_the_count_ends_it() -> None:
    sampler = sampler_of(TraceScope(session=1, rate=2, count=2))
    assert picked(sampler, 10) == [2, 4]


def test_a_model_with_settings_of_its_own_counts_for_itself() -> None:
    own = TraceScope(session=2, rate=1, count=1)
    sampler = sampler_of(TraceScope(session=1, rate=0), own=own)
    assert sampler.is_on_for("own")
    assert not sampler.is_on_for("m")
    assert picked(sampler, 3, "own") == [1]
    assert sampler.sample("m") is None


def test_models_without_settings_of_their_own_count_together() -> None:
    sampler = sampler_of(TraceScope(session=1, rate=2))
    assert sampler.sample("a") is None
    assert sampler.sample("b") is not None


def test_a_session_that_goes_on_keeps_its_place_and_what_it_has_used() -> None:
    scope = TraceScope(session=1, rate=2, count=2)
    sampler = sampler_of(scope)
    assert picked(sampler, 3) == [2]
    sampler.follow(TraceSettings(overall=scope))
    assert picked(sampler, 4) == [1]


def test_control_can_take_the_rest_of_a_count_away() -> None:
    sampler = sampler_of(TraceScope(session=1, rate=1, count=5))
    sampler.follow(TraceSettings(overall=TraceScope(session=1, rate=0, count=0)))
    assert picked(sampler, 3) == []


def test_another_session_begins_anew() -> None:
    sampler = sampler_of(TraceScope(session=1, rate=3, count=1))
    assert picked(sampler, 5) == [3]
    sampler.follow(TraceSettings(overall=TraceScope(session=2, rate=3, count=1)))
    assert picked(sampler, 5) == [3]


def test_a_request_of_a_traced_caller_is_traced_whatever_the_rate() -> None:
    scope = TraceScope(session=1, rate=1000, count=1)
    sampler = sampler_of(scope, follows_callers=True)
    assert [sampler.sample("m", SAMPLED) for _ in range(2)] == [scope, scope]
    assert sampler.sample("m", UNSAMPLED) is None


def test_callers_are_followed_even_if_nothing_else_is_traced() -> None:
    sampler = sampler_of(TraceScope(session=1, rate=0), follows_callers=True)
    assert sampler.is_on_for("m")
    assert sampler.sample("m") is None
    assert sampler.sample("m", SAMPLED) is not None
    off = TraceScope(session=1, rate=0, timestamps=False)
    assert not sampler_of(off, follows_callers=True).is_on


def test_callers_are_not_followed_unless_that_was_asked() -> None:
    sampler = sampler_of(TraceScope(session=1, rate=1000))
    assert sampler.sample("m", SAMPLED) is None


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (SAMPLED, True),
        (UNSAMPLED, False),
        (SAMPLED[:-2] + "03", True),
        (SAMPLED[:-2] + "zz", False),
        ("", False),
        ("00-1-2", False),
    ],
)
def test_the_callers_flag_is_read_from_traceparent(
    header: str, *, expected: bool
) -> None:
    assert is_sampled(header) is expected


@given(
    rate=st.integers(1, 9),
    count=st.integers(-1, 9),
    requests=st.integers(0, 99),
    again=st.integers(0, 99),
)
def test_never_more_than_the_count_nor_more_than_one_of_rate(
    rate: int, count: int, requests: int, again: int
) -> None:
    scope = TraceScope(session=1, rate=rate, count=count)
    sampler = sampler_of(scope)
    found = len(picked(sampler, requests))
    sampler.follow(TraceSettings(overall=scope))
    found += len(picked(sampler, again))
    most = (requests + again) // rate
    assert found == (most if count < 0 else min(most, count))
