"""What a model declares of its executions, in its configuration's ``parameters``."""

from collections.abc import Mapping
from typing import Final

from services.core.model_config_fields import FieldError

EXECUTION_TIMEOUT_PARAMETER: Final = "nereid_execution_timeout_secs"
_LONGEST_S: Final = 7 * 24 * 3600


def execution_timeout_from_parameters(parameters: Mapping[str, str]) -> int:
    """Return how long one execution may take, in nanoseconds; 0: for ever.

    Raises:
        FieldError: it is no number of seconds.
    """
    text = parameters.get(EXECUTION_TIMEOUT_PARAMETER)
    if text is None:
        return 0
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds <= _LONGEST_S:
        raise FieldError(f"must be a number of seconds above 0, got '{text}'")
    return int(seconds * 1_000_000_000)
