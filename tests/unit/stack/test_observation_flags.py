"""The flags about traces and the log file, for control."""

from services.stack.command_line import parse
from services.stack.observation_flags import observation_flags
from services.stack.settings import settings_of


def test_former_flags_become_settings_and_give_way_to_the_present_ones() -> None:
    line = parse(
        [
            "--trace-config=rate=4",
            "--trace-config=triton,file=/x/t.json",
            "--trace-level=TENSORS",
            "--trace-level=TIMESTAMPS",
            "--trace-rate=5",
            "--trace-count=6",
            "--trace-log-frequency=7",
        ]
    )
    assert observation_flags(line.values) == (
        "--trace-config=level=TENSORS",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=5",
        "--trace-config=count=6",
        "--trace-config=triton,log-frequency=7",
        "--trace-config=rate=4",
        "--trace-config=triton,file=/x/t.json",
    )


def test_control_learns_where_the_log_is_written() -> None:
    line = parse(["--model-repository=/m", "--log-file=a", "--log-file=b"])
    assert observation_flags(line.values) == ("--log-file=b",)
    assert "--log-file=b" in settings_of(line).control_flags


def test_without_such_flags_control_gets_none() -> None:
    assert observation_flags(parse(["--model-repository=/m"]).values) == ()
