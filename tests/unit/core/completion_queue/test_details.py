"""The text of a status, as long as a header may be."""

import pytest

from services.core.completion_queue.details import fitting


@pytest.mark.parametrize(
    ("details", "kept"),
    [
        ("", 0),
        ("short \u00e9", 7),
        ("a" * 600, 600),
        ("a" * 601, 600),
        ("%" * 600, 200),
        ("\n" * 201, 200),
        ("\u00e9" * 600, 100),
        ("a" + "\u00e9" * 600, 100),
        ("aa" + "\u00e9" * 600, 101),
        ("\U0001f600" * 600, 50),
    ],
)
def test_a_text_is_cut_to_what_a_header_carries(details: str, kept: int) -> None:
    assert fitting(details, 600) == details[:kept].encode()


def test_what_has_no_encoding_does_not_stand_in_the_way_of_an_error() -> None:
    assert fitting("unknown input '\ud800'", 600) == b"unknown input '?'"
