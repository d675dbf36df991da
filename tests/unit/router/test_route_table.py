"""Which version answers, and what a client is told when none does."""

import pytest

from services.core.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    ModelNotReadyError,
)
from services.core.lifecycle import ModelState
from services.router.route_table import RouteTable
from tests.unit.router.routes import add_sub, route

TABLE = RouteTable.of(
    [
        route(add_sub(), 1, generation=1),
        route(add_sub(), 3, generation=3),
        route(add_sub(), 4, state=ModelState.LOADING, generation=0),
        route(add_sub("broken"), 1, state=ModelState.UNAVAILABLE, generation=0),
    ],
    names=["emptied"],
)


def test_a_router_that_was_told_nothing_yet_calls_no_model_unknown() -> None:
    with pytest.raises(ModelNotReadyError, match="'simple': the models are not known"):
        RouteTable().find("simple", "")
    with pytest.raises(ModelNotFoundError, match="'simple' is not found"):
        RouteTable.of([]).find("simple", "")


def test_no_version_means_the_newest_that_is_ready() -> None:
    assert TABLE.find("simple", "").version == 3


def test_a_version_is_answered_by_itself() -> None:
    assert TABLE.find("simple", "1").version == 1


@pytest.mark.parametrize(
    ("model", "version", "error", "message"),
    [
        ("nope", "", ModelNotFoundError, "unknown model: 'nope' is not found"),
        ("simple", "2", ModelNotFoundError, "'simple' version 2 is not found"),
        ("broken", "", ModelNotFoundError, "'broken' has no available versions"),
        ("emptied", "", ModelNotFoundError, "'emptied' has no available versions"),
        ("simple", "4", ModelNotReadyError, "'simple' version 4 is not at ready state"),
        ("simple", "abc", InvalidRequestError, "version string 'abc' (details: stol)"),
        ("simple", "-1", InvalidRequestError, "version string '-1'"),
        ("simple", "٣", InvalidRequestError, "version string '٣'"),
        ("simple", "9" * 20, InvalidRequestError, "should be an integral value > 0"),
    ],
)
def test_who_is_not_there_is_named(
    model: str, version: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        TABLE.find(model, version)
    assert message in str(caught.value)


def test_only_ready_versions_are_listed() -> None:
    assert TABLE.ready_versions("simple") == ["1", "3"]
    assert TABLE.ready_versions("broken") == []
