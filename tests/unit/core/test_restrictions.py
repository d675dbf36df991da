"""Restricted parts of the API, as the flags name them."""

import pytest

from services.core.restrictions import CATEGORIES, Restriction, parse_restrictions


def test_every_method_of_a_category_is_restricted() -> None:
    found = parse_restrictions(["model-repository,health:key=a=b"], "prefix-")
    assert set(found) == {*CATEGORIES["model-repository"], *CATEGORIES["health"]}
    assert set(found.values()) == {Restriction(header="prefix-key", value="a=b")}


def test_categories_may_have_different_keys() -> None:
    found = parse_restrictions(["trace:t=1", "logging:l=2"])
    assert found["TraceSetting"] == Restriction(header="t", value="1")
    assert found["LogSettingsUpdate"] == Restriction(header="l", value="2")
    assert "ModelInfer" not in found


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["health"], "expected CATEGORY"),
        (["health:key"], "expected CATEGORY"),
        (["health:=value"], "expected CATEGORY"),
        (["health:key="], "expected CATEGORY"),
        ([":key=value"], "expected CATEGORY"),
        (["nope:key=value"], "unknown API 'nope'"),
        (["health,health:key=value"], "'health' is restricted twice"),
        (["health:a=b", "trace,health:c=d"], "'health' is restricted twice"),
    ],
)
def test_flags_that_are_no_restriction_are_refused(
    flags: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        parse_restrictions(flags)


def test_no_method_belongs_to_two_categories() -> None:
    methods = [method for group in CATEGORIES.values() for method in group]
    assert len(methods) == len(set(methods))
