"""Trace settings: fallback, sessions, and the texts for what makes no sense."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.control.trace_setting_values import answer, change_of
from services.control.trace_settings import (
    OPENTELEMETRY_MODE,
    TraceChange,
    TraceLevel,
    TraceSettings,
    TraceValues,
    initial,
)
from services.control.trace_settings_text import restored, to_text
from services.core.errors import InvalidRequestError, UnsupportedError

START = TraceValues(level=TraceLevel.TIMESTAMPS, rate=1)


def begun() -> TraceSettings:
    return initial(START, file="t.json", first_session=7)


def after(settings: TraceSettings, model: str, **named: list[str]) -> TraceSettings:
    return settings.updated(model, change_of(named))


def test_a_model_has_the_global_settings_until_it_has_its_own() -> None:
    settings = after(begun(), "", trace_rate=["2"], trace_count=["5"])
    assert settings.scope_of("m").values.rate == 2
    settings = after(settings, "m", trace_rate=["7"], trace_level=["TENSORS"])
    assert settings.scope_of("m").values == TraceValues(
        level=TraceLevel.TENSORS, rate=7, count=5
    )
    assert settings.scope_of("other").values.rate == 2


def test_what_a_model_does_not_specify_follows_the_global_settings() -> None:
    settings = after(begun(), "m", trace_rate=["7"])
    settings = after(settings, "", trace_rate=["9"], trace_count=["6"])
    assert settings.scope_of("m").values == TraceValues(
        level=TraceLevel.TIMESTAMPS, rate=7, count=6
    )


def test_a_model_that_specifies_nothing_any_more_is_like_the_others() -> None:
    settings = after(begun(), "m", trace_rate=["7"])
    settings = after(settings, "m", trace_rate=[])
    assert settings.models == {}


def test_a_cleared_global_setting_is_the_start_ups() -> None:
    settings = after(begun(), "", trace_rate=["2"], log_frequency=["3"])
    settings = after(settings, "", trace_rate=[], trace_level=[], log_frequency=[])
    assert settings.overall.values == START


def test_every_change_begins_another_session() -> None:
    settings = begun()
    assert settings.overall.session == 7
    settings = after(settings, "m", trace_rate=["2"])
    first = settings.scope_of("m").session
    settings = after(settings, "", trace_rate=["3"])
    numbers = [7, first, settings.overall.session, settings.scope_of("m").session]
    assert len(set(numbers)) == 4


def test_a_count_comes_down_for_its_own_scope_only() -> None:
    settings = after(begun(), "m", trace_count=["2"])
    settings = after(settings, "", trace_count=["1"])
    settings = settings.counted(settings.scope_of("m").session)
    assert settings.scope_of("m").values.count == 1
    assert settings.overall.values.count == 1
    settings = settings.counted(settings.overall.session)
    settings = settings.counted(settings.overall.session)
    assert settings.overall.values.count == 0
    assert not settings.is_active(settings.overall.values)
    assert settings.is_active(settings.scope_of("m").values)


def test_no_limit_stays_no_limit() -> None:
    settings = begun()
    assert settings.counted(7) == settings


def test_a_later_change_keeps_what_is_left_of_a_count() -> None:
    settings = after(begun(), "", trace_count=["5"])
    settings = settings.counted(settings.overall.session)
    assert after(settings, "", trace_rate=["3"]).overall.values.count == 4


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ({"trace_rate": ["x"]}, "Unable to parse 'trace_rate', got: x"),
        ({"trace_rate": [""]}, "Unable to parse 'trace_rate', got: "),
        ({"trace_rate": ["1", "2"]}, "expect only 1 value for 'trace_rate'"),
        (
            {"trace_rate": ["2147483648"]},
            "Unable to parse 'trace_rate', value is out of range"
            " [ 0, 4294967295 ], got: 2147483648",
        ),
        (
            {"trace_rate": ["-1"]},
            "Unable to parse 'trace_rate', value is out of range"
            " [ 0, 4294967295 ], got: -1",
        ),
        (
            {"trace_count": ["-2"]},
            "Unable to parse 'trace_count'. Expecting value >= -1, got: -2",
        ),
        (
            {"trace_count": ["2147483648"]},
            "Unable to parse 'trace_count', value is out of range"
            " [ -1, 2147483647 ], got: 2147483648",
        ),
        ({"log_frequency": ["y"]}, "Unable to parse 'log_frequency', got: y"),
        (
            {"trace_level": ["OFF", "TENSORS"]},
            "Expect only one trace level 'OFF' is specified",
        ),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_in_tritons_words(
    named: dict[str, list[str]], text: str
) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        change_of(named)
    assert str(raised.value) == text


@pytest.mark.parametrize("text", ["2147483647", " 7", "12abc", "0", "+3"])
def test_a_number_is_read_as_far_as_it_goes(text: str) -> None:
    digits = {"2147483647": 2**31 - 1, " 7": 7, "12abc": 12, "0": 0, "+3": 3}
    assert change_of({"trace_rate": [text]}).values == {"rate": digits[text]}


def test_the_file_is_read_only() -> None:
    with pytest.raises(UnsupportedError, match="trace file location can not be"):
        change_of({"trace_file": []})


@pytest.mark.parametrize(
    ("settings", "named", "reason"),
    [
        (begun(), {"trace_rate": ["0"]}, "sample rate must be non-zero"),
        (begun(), {"trace_count": ["0"]}, ""),
        (
            initial(TraceValues()),
            {"trace_level": ["TIMESTAMPS"]},
            "trace file name is not given",
        ),
    ],
)
def test_settings_that_could_trace_nothing_are_refused(
    settings: TraceSettings, named: dict[str, list[str]], reason: str
) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        settings.updated("", change_of(named))
    text = f"Attempting to set invalid trace setting :{reason}"
    assert str(raised.value) == text


def test_with_tracing_off_anything_may_be_set() -> None:
    settings = after(initial(TraceValues()), "", trace_rate=["0"], trace_level=["OFF"])
    assert settings.overall.values.rate == 0


def test_a_level_that_nobody_knows_says_nothing() -> None:
    assert change_of({"trace_level": ["NOPE"], "foo": ["x"]}) == TraceChange()


def test_levels_add_up() -> None:
    change = change_of({"trace_level": ["TENSORS", "NOPE", "TIMESTAMPS"]})
    both = TraceLevel.TENSORS | TraceLevel.TIMESTAMPS
    assert change.values == {"level": both}
    assert both.names == ("TIMESTAMPS", "TENSORS")
    assert TraceLevel.OFF.names == ("OFF",)


def test_the_answer_is_made_of_strings() -> None:
    assert answer(begun(), "") == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": ["1"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": ["t.json"],
        "trace_mode": ["triton"],
    }


def test_in_opentelemetry_mode_nothing_changes_and_no_file_is_shown() -> None:
    settings = initial(
        START, mode=OPENTELEMETRY_MODE, options=(("url", "http://localhost"),)
    )
    shown = answer(settings, "")
    assert shown["trace_mode"] == ["opentelemetry"]
    assert shown["url"] == ["http://localhost"]
    assert "trace_file" not in shown
    with pytest.raises(UnsupportedError):
        after(settings, "", trace_rate=["3"])


def test_what_was_stored_comes_back_in_new_sessions() -> None:
    settings = after(begun(), "", trace_rate=["2"], trace_count=["9"])
    settings = after(settings, "m", trace_level=["TENSORS"])
    start = initial(START, file="t.json", first_session=100)
    back = restored(start, to_text(settings))
    assert back.overall.values == settings.overall.values
    assert back.overall.specified == settings.overall.specified
    assert back.scope_of("m").values == settings.scope_of("m").values
    sessions = [scope.session for scope in back.scopes()]
    assert min(sessions) > 100
    assert back.last_session == max(sessions)


def test_a_changed_command_line_is_a_fresh_beginning() -> None:
    text = to_text(after(begun(), "", trace_rate=["2"]))
    start = initial(START, file="other.json")
    assert restored(start, text) == start


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_what_another_wrote_is_not_believed(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of whatever kind
        restored(begun(), text)


numbers = st.integers(1, 9).map(str)
changes = st.fixed_dictionaries(
    {},
    optional={
        "trace_rate": st.one_of(st.just([]), numbers.map(lambda n: [n])),
        "trace_count": st.one_of(st.just([]), numbers.map(lambda n: [n])),
        "log_frequency": st.one_of(st.just([]), numbers.map(lambda n: [n])),
        "trace_level": st.sampled_from([[], ["OFF"], ["TENSORS"], ["TIMESTAMPS"]]),
    },
)


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), changes), max_size=8))
def test_any_changes_leave_settings_that_hold_together(
    steps: list[tuple[str, dict[str, list[str]]]],
) -> None:
    settings = begun()
    for model, named in steps:
        settings = settings.updated(model, change_of(named))
        sessions = [scope.session for scope in settings.scopes()]
        assert len(set(sessions)) == len(sessions)
        assert max(sessions) <= settings.last_session
        overall = settings.overall.values
        for scope in settings.models.values():
            assert scope.specified
            for name in {"level", "rate", "count", "log_frequency"} - scope.specified:
                assert getattr(scope.values, name) == getattr(overall, name)
