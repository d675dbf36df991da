"""What a request says beside its tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from services.core.trace_token import TRACE_PARAMETER

Parameter: TypeAlias = bool | int | float | str

SEQUENCE_START: Final = 1
SEQUENCE_END: Final = 2

# Parameters with a meaning of their own; they are not the model's.
_RESERVED: Final = frozenset(
    {
        "binary_data_output",
        TRACE_PARAMETER,
        "priority",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "timeout",
        "triton_enable_empty_final_response",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDetails:
    """What a request says beside its tensors.

    Attributes:
        parameters: The client's own.
        correlation_id: Of its sequence; 0 for none.
        flags: Of the sequence: 1 at its start, 2 at its end.
        timeout_us: How long it may wait; 0 for no limit of its own.
        priority: 0 for the model's default.
        trace: That it is part of, as its router says it; "" for none.
    """

    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    correlation_id: int | str = 0
    flags: int = 0
    timeout_us: int = 0
    priority: int = 0
    trace: str = ""


NO_DETAILS: Final = RequestDetails()


def details_of(parameters: Mapping[str, Parameter]) -> RequestDetails:
    """Tell the client's own parameters from those with a meaning.

    Source:
        The sequence, priority and timeout parameters of Triton's protocol.
    """
    if not parameters:
        return NO_DETAILS
    correlation_id = parameters.get("sequence_id", 0)
    return RequestDetails(
        parameters={k: v for k, v in parameters.items() if k not in _RESERVED},
        correlation_id=correlation_id
        if isinstance(correlation_id, str)
        else int(correlation_id),
        flags=(SEQUENCE_START if parameters.get("sequence_start") else 0)
        | (SEQUENCE_END if parameters.get("sequence_end") else 0),
        timeout_us=_whole(parameters.get("timeout", 0)),
        priority=_whole(parameters.get("priority", 0)),
        trace=str(parameters.get(TRACE_PARAMETER, "")),
    )


def _whole(value: Parameter) -> int:
    """Return a number; what is none was refused by the router."""
    return 0 if isinstance(value, str) else int(value)
