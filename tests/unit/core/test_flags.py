"""Triton's booleans on the command line."""

import argparse

import pytest

from services.core.flags import add_bool, parse_bool


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_bool(parser, "--strict-readiness", default=True, text="a bool")
    parser.add_argument("--other")
    return parser


@pytest.mark.parametrize("word", ["true", "1", "on", "True", "ON"])
def test_words_for_true(word: str) -> None:
    assert parse_bool(word) is True


@pytest.mark.parametrize("word", ["false", "0", "off", "FALSE"])
def test_words_for_false(word: str) -> None:
    assert parse_bool(word) is False


@pytest.mark.parametrize("word", ["", "yes", "2", "truee"])
def test_other_words_are_refused_in_tritons_wording(word: str) -> None:
    with pytest.raises(ValueError, match=f"invalid value for bool option: {word}"):
        parse_bool(word)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], True),
        (["--strict-readiness"], True),
        (["--strict-readiness=0"], False),
        (["--strict-readiness", "false"], False),
        (["--strict-readiness", "--other", "x"], True),
    ],
)
def test_the_value_may_be_absent_or_follow_either_way(
    arguments: list[str], expected: bool
) -> None:
    assert parser().parse_args(arguments).strict_readiness is expected


def test_a_bad_word_is_told_to_the_user() -> None:
    with pytest.raises(argparse.ArgumentError, match="invalid value for bool option"):
        parser().parse_args(["--strict-readiness=maybe"])
