"""What a log line looks like, and which lines there are."""

import contextlib
import datetime as dt
import os
import re
from collections.abc import Iterator

import pytest
import structlog

from services.core import logs
from services.core.logs import LogSettings, format_line, settings_from

AT = dt.datetime(2024, 5, 20, 20, 3, 25, 829575, tzinfo=dt.UTC)
EVENT = {"event": "up", "pathname": "/x/services/router/app.py", "lineno": 31}


def line(settings: LogSettings, event: dict[str, object]) -> str:
    return format_line(settings, level="info", at=AT, process_id=3355, event=event)


@pytest.fixture(autouse=True)
def _structlog_as_it_was() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_a_line_has_tritons_form() -> None:
    expected = 'I0520 20:03:25.829575 3355 router/app.py:31] "up" port=8001'
    assert line(LogSettings(), EVENT | {"port": 8001}) == expected


def test_a_line_has_tritons_iso_form() -> None:
    expected = '2024-05-20T20:03:25Z 3355 I router/app.py:31] "up"'
    assert line(LogSettings(iso8601=True), EVENT) == expected


@pytest.mark.parametrize("separator", ["\n", "\r", "\x85", "\u2028", "\x1b[2J"])
def test_nobody_can_forge_a_line(separator: str) -> None:
    text = f"a{separator}I0520 forged"
    shown = line(LogSettings(), EVENT | {"event": text, "model": text, "error": text})
    assert len(shown.splitlines()) == 1
    assert "\x1b" not in shown


def test_a_traceback_is_indented() -> None:
    shown = line(LogSettings(), EVENT | {"exception": "Traceback:\nI0520 forged"})
    assert shown.splitlines()[1:] == ["    Traceback:", "    I0520 forged"]


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        (LogSettings(), ["info", "warning", "error", "exception"]),
        (LogSettings(verbose=1), ["debug", "info", "warning", "error", "exception"]),
        (LogSettings(info=False), ["warning", "error", "exception"]),
        (LogSettings(warning=False), ["info", "error", "exception"]),
        (LogSettings(error=False), ["info", "warning"]),
    ],
)
def test_each_level_has_a_switch_of_its_own(
    settings: LogSettings, written: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(settings=settings)
    for level in ("debug", "info", "warning", "error", "exception"):
        getattr(structlog.get_logger(), level)(level)
    assert re.findall(r'\] "(\w+)"', capsys.readouterr().err) == written


def test_a_logger_that_exists_obeys_later_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = structlog.get_logger()
    logs.configure(settings=LogSettings())
    logger.debug("before")
    logs.configure(settings=LogSettings(verbose=1))
    logger.debug("after")
    assert re.findall(r'\] "(\w+)"', capsys.readouterr().err) == ["after"]


def test_an_exception_is_shown_with_its_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure(settings=LogSettings())
    try:
        _ = 1 // 0
    except ZeroDivisionError:
        structlog.get_logger().exception("bad")
    assert "    ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings",
    [
        LogSettings(),
        LogSettings(verbose=2, info=False, warning=False, error=False, iso8601=True),
    ],
)
def test_a_child_process_learns_all_settings(settings: LogSettings) -> None:
    assert settings_from(settings.to_environment()) == settings


def test_the_higher_verbosity_holds() -> None:
    inherited = LogSettings(verbose=2).to_environment()
    assert settings_from(inherited, verbose=1).verbose == 2
    assert settings_from({}, verbose=1).verbose == 1


def test_a_reader_that_has_gone_does_not_stop_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1) as nobody_reads:  # noqa: PTH123  a descriptor
        monkeypatch.setattr("sys.stderr", nobody_reads)
        logs.configure()
        structlog.get_logger().error("to nobody")
        with contextlib.suppress(BrokenPipeError):
            nobody_reads.close()
