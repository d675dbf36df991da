"""Command-line flags in Triton's manner: ``--flag``, ``--flag=1``, ``--flag true``.

Source: the option parser of the ``tritonserver`` command.
"""

import argparse
from typing import Final

TRUE_WORDS: Final = frozenset({"true", "1", "on"})
FALSE_WORDS: Final = frozenset({"false", "0", "off"})


def parse_bool(text: str) -> bool:
    """Read one of Triton's words for true and false, in any case.

    Raises:
        ValueError: it is neither.
    """
    word = text.lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError(f"invalid value for bool option: {text}")


def bool_argument(text: str) -> bool:
    """``parse_bool`` as an argparse type, which shows the message to the user.

    Raises:
        argparse.ArgumentTypeError: it is neither true nor false.
    """
    try:
        return parse_bool(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_bool(
    parser: argparse.ArgumentParser, name: str, *, default: bool, text: str
) -> None:
    """Add a flag that takes no value, or a bool after ``=`` or a space.

    Args:
        parser: Gets the flag.
        name: With its dashes, for example ``--exit-on-error``.
        default: The value where the flag is absent.
        text: The help line; the default is appended.
    """
    parser.add_argument(
        name,
        nargs="?",
        const=True,
        default=default,
        type=bool_argument,
        metavar="BOOL",
        help=f"{text} (default: {str(default).lower()})",
    )
