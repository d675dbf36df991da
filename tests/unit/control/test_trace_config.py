"""--trace-config."""

import pytest

from services.control.trace_config import TraceConfig, read
from services.control.trace_settings import TraceLevel, TraceValues


def test_global_settings_and_those_of_a_mode_add_up() -> None:
    config = read(
        [
            "triton,file=/x/t.json",
            "triton,log-frequency=50",
            "level=TIMESTAMPS",
            "level=TENSORS",
            "rate=10",
            "count=100",
        ]
    )
    assert config == TraceConfig(
        values=TraceValues(
            level=TraceLevel.TIMESTAMPS | TraceLevel.TENSORS,
            rate=10,
            count=100,
            log_frequency=50,
        ),
        file="/x/t.json",
    )


def test_level_off_takes_back_what_was_before() -> None:
    assert read(["level=TENSORS", "level=OFF"]).values.level is TraceLevel.OFF


def test_options_of_opentelemetry_are_kept_in_order() -> None:
    config = read(
        ["mode=opentelemetry", "opentelemetry,url=a=b", "opentelemetry,resource=k=v"]
    )
    assert config.mode == "opentelemetry"
    assert config.options == (("url", "a=b"), ("resource", "k=v"))


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("nothing", "'nothing'"),
        ("rate=x", "rate=x: "),
        ("rate=-1", "rate=-1: "),
        ("count=-2", "count=-2: "),
        ("level=NOPE", "'NOPE'"),
        ("mode=foo", "'foo'"),
        ("foo=1", "'foo'"),
        ("foo,bar=1", "'foo'"),
        ("triton,foo=1", "'foo'"),
        ("triton,log-frequency=x", "log-frequency=x: "),
    ],
)
def test_what_makes_no_sense_is_named(argument: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read([argument])
