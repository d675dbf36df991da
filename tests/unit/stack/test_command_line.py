"""Triton's command lines are understood, and what is not is explained."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.stack.command_line import UsageError, help_text, parse
from services.stack.flags import FLAGS, TRITON_FLAGS, Effect, Flag, Kind

SAMPLES = {
    Kind.SWITCH: ("true", True),
    Kind.BOOL: ("false", False),
    Kind.INTEGER: ("7", 7),
    Kind.NUMBER: ("7.5", 7.5),
    Kind.TEXT: ("x", "x"),
}


def test_the_table_has_all_91_flags_each_once() -> None:
    assert len({flag.name for flag in TRITON_FLAGS}) == len(TRITON_FLAGS) == 91


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_flag_is_accepted_and_in_the_help(flag: Flag) -> None:
    text, value = SAMPLES[flag.kind]
    line = parse([f"--{flag.name}={text}"])
    assert line.values == {flag.alias_of or flag.name: (value,)}
    assert bool(line.ignored) == (flag.effect is Effect.IGNORED)
    assert f"  --{flag.name}" in help_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--http-port", "9000", "--model-repository", "/m"],
        ["--http-port=9000", "--model-repository=/m"],
        ["--http-port=8000", "--http-port=9000", "--model-store", "/m"],
        ["--http_port=9000", "--model_repository=/m"],
    ],
)
def test_values_follow_a_space_or_an_equals_sign_and_the_last_holds(
    arguments: list[str],
) -> None:
    expected = {"http-port": (9000,), "model-repository": ("/m",)}
    assert parse(arguments).values == expected


def test_a_repeated_flag_collects_its_values_also_under_its_old_name() -> None:
    line = parse(["--model-repository=/a", "--model-store=/b"])
    assert line.values == {"model-repository": ("/a", "/b")}
    assert [flag.name for flag in line.deprecated] == ["model-store"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--allow-http"], True),
        (["--allow-http", "--load-model=x"], True),
        (["--allow-http", "false"], False),
        (["--allow-http", "0"], False),
        (["--allow-http=FALSE"], False),
    ],
)
def test_a_bool_may_stand_alone(arguments: list[str], expected: bool) -> None:
    assert parse(arguments).values["allow-http"] == (expected,)


def test_the_old_strict_model_config_switches_auto_completion_off() -> None:
    line = parse(["--strict-model-config=true"])
    assert line.values == {"disable-auto-complete-config": (True,)}


def test_an_ignored_flag_is_named_once_however_often_it_is_used() -> None:
    line = parse(["--host-policy=a,b=c", "--host-policy", "a,b=d"])
    assert [flag.name for flag in line.ignored] == ["host-policy"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--http-prot=1"], "unknown flag --http-prot; did you mean --http-port?"),
        (["--qqqqqq"], "unknown flag --qqqqqq"),
        (["serve"], "unexpected argument 'serve'"),
        (["--http-port"], "--http-port needs a value"),
        (["--http-port", "--grpc-port=1"], "--http-port needs a value"),
        (["--http-port=http"], "--http-port takes N, not 'http'"),
        (["--allow-http=maybe"], "--allow-http takes BOOL, not 'maybe'"),
    ],
)
def test_what_is_not_understood_is_explained(
    arguments: list[str], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        parse(arguments)
    assert str(refused.value).startswith(message)


@given(st.lists(st.text(max_size=20)))
def test_no_command_line_ends_in_anything_but_values_or_an_explanation(
    arguments: list[str],
) -> None:
    with contextlib.suppress(UsageError):
        assert set(parse(arguments).values) <= {flag.name for flag in FLAGS}
