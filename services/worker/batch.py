"""A batch of requests, decoded."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from services.core.errors import ServingError
from services.worker.layout import Layout


class Member(NamedTuple):
    """One request that takes part in the execution.

    Attributes:
        layout: What its header says.
        id_field: Its ``id`` with tag and length, as it goes into the reply.
        first_row: Its first row in the batch; ``layout.rows`` are its own.
    """

    layout: Layout
    id_field: bytes
    first_row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One request that does not take part, and why."""

    error: ServingError


class Batch(NamedTuple):
    """One execution.

    A named tuple, as ``Member`` is: a frozen dataclass takes four times as long.

    Attributes:
        outcomes: One for each request, in the order of the requests.
        rows: Of all members together; 1 if the model does not batch and there
            is a member.
        inputs: By input name; valid until the next batch is decoded.
        outputs: Indices of the signature's outputs that somebody asked for.
    """

    outcomes: tuple[Member | Refusal, ...]
    rows: int
    inputs: dict[str, NDArray[Any]]
    outputs: tuple[int, ...]
