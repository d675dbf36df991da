"""A version as clients write it."""

import pytest

from services.core.errors import InvalidRequestError
from services.core.model_version import parse_version


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", None),
        ("1", 1),
        ("007", 7),
        ("0", 0),
        (str(2**63 - 1), 2**63 - 1),
        ("0" * 5000 + "3", 3),
    ],
)
def test_a_decimal_number_is_read(text: str, number: int | None) -> None:
    assert parse_version(text) == number


@pytest.mark.parametrize(
    "text",
    ["-1", "+1", " 1", "1_0", "1.0", "\u0661", "x", str(2**63), "9" * 20, "9" * 5000],
)
def test_everything_else_is_refused_whatever_its_length(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="should be an integral value"):
        parse_version(text)
