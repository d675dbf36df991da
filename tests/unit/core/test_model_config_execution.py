"""How long an execution may take, as a configuration declares it."""

import pytest

from services.core.model_config import FieldError
from services.core.model_config_execution import (
    EXECUTION_TIMEOUT_PARAMETER,
    execution_timeout_from_parameters,
)


def declared(text: str) -> int:
    return execution_timeout_from_parameters({EXECUTION_TIMEOUT_PARAMETER: text})


def test_by_default_an_execution_may_take_for_ever() -> None:
    assert execution_timeout_from_parameters({}) == 0


@pytest.mark.parametrize(
    ("text", "expected_ns"), [("30", 30_000_000_000), ("0.5", 500_000_000)]
)
def test_seconds_are_read(text: str, expected_ns: int) -> None:
    assert declared(text) == expected_ns


@pytest.mark.parametrize("text", ["", "0", "-1", "soon", "nan", "inf", "1e9"])
def test_what_is_no_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(FieldError, match="number of seconds above 0"):
        declared(text)
