"""What clients may change of the log, and what is remembered of it."""

import pytest

from services.control.log_settings import (
    ParameterValue,
    answer,
    restored,
    to_text,
    updated,
)
from services.core.errors import InvalidRequestError, UnsupportedError
from services.core.logs import LogSettings


def test_only_what_is_named_changes() -> None:
    before = LogSettings(warning=False)
    after = updated(before, {"log_verbose_level": 2, "log_info": False, "nope": 1})
    assert after == LogSettings(warning=False, info=False, verbose=2)


def test_a_format_is_one_of_two_words() -> None:
    iso = updated(LogSettings(), {"log_format": "ISO8601"})
    assert iso.iso8601
    assert not updated(iso, {"log_format": "default"}).iso8601


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("log_info", 1, "expect boolean for 'log_info'"),
        ("log_warning", "x", "expect boolean for 'log_warning'"),
        ("log_error", None, "expect boolean for 'log_error'"),
        ("log_verbose_level", True, "expect int32 for 'log_verbose_level'"),
        ("log_verbose_level", "1", "expect int32 for 'log_verbose_level'"),
        ("log_format", 1, "expect string for 'log_format'"),
        ("log_format", "iso8601", "invalid argument for log_format, got: iso8601"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_in_tritons_words(
    name: str, value: ParameterValue, text: str
) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        updated(LogSettings(), {"log_error": False, name: value})
    assert str(raised.value) == text


def test_the_file_cannot_be_changed_not_even_to_nothing() -> None:
    with pytest.raises(UnsupportedError, match="log file location can not be updated"):
        updated(LogSettings(), {"log_file": ""})


def test_the_answer_has_every_setting() -> None:
    assert answer(LogSettings(verbose=3, iso8601=True), "x.log") == {
        "log_file": "x.log",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 3,
        "log_format": "ISO8601",
    }


def test_what_clients_changed_survives_unless_the_command_line_changed_too() -> None:
    start, changed = LogSettings(), LogSettings(info=False)
    text = to_text(start, changed)
    assert restored(start, text) == changed
    other = LogSettings(verbose=1)
    assert restored(other, text) == other


@pytest.mark.parametrize("text", ["", "[]", "[{}, {}, {}]", '[{"a": 1}, {}]', "[1, 2]"])
def test_what_another_wrote_is_not_believed(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of whatever kind
        restored(LogSettings(), text)
