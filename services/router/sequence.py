"""One living sequence: the requests with one correlation id, from START to END."""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar

CorrelationId: TypeAlias = int | str


class SequencedRequest(Protocol):
    """What the sequencer needs to know of a request.

    Attributes:
        correlation_id: Of its sequence.
        starts: Whether it begins a life of its sequence.
        ends: Whether it is the last.
        enqueued_ns: When it came.
        timeout_ns: How long its sequence may wait for a slot; 0: for ever.
        number: Of the sequence's life that it belongs to; the sequencer's to set.
    """

    correlation_id: CorrelationId
    starts: bool
    ends: bool
    enqueued_ns: int
    timeout_ns: int
    number: int


RequestT = TypeVar("RequestT", bound=SequencedRequest)


@dataclass(slots=True, eq=False)
class Sequence(Generic[RequestT]):
    """What is known of a sequence.

    Attributes:
        correlation_id: Its name.
        last_active_ns: When it last had, or was given, something to do.
        requests: Those that wait, in their order.
        is_ending: Whether the last of them has END.
        slot: Its place on its instance; -1 while it waits for one.
        number: Of its newest life: START begins a new one.
        held: The number of the life whose state its instance has; 0: none.
        executing: The request that is being executed, if any.
        expires_ns: When it has waited too long for a slot; None: never. Only while
            it waits.
    """

    correlation_id: CorrelationId
    last_active_ns: int
    requests: deque[RequestT] = field(default_factory=deque)
    is_ending: bool = False
    slot: int = -1
    number: int = 0
    held: int = 0
    executing: RequestT | None = None
    expires_ns: int | None = None

    def add(self, request: RequestT) -> None:
        """Put a request behind the others."""
        self.requests.append(request)
        self.last_active_ns = request.enqueued_ns
        self.is_ending = request.ends
        if request.timeout_ns and self.slot < 0:
            expires_ns = request.enqueued_ns + request.timeout_ns
            self.expires_ns = min(self.expires_ns or expires_ns, expires_ns)
