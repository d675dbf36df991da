"""Which request of which sequence is executed next, and where: pure.

A sequence is the requests with one correlation id, from the one with START to the
one with END. It is bound to a slot of one instance for its whole life, since that
instance may keep state for it; its requests are executed one after the other.

Source: Triton's user guide, "Stateful Models": the direct and the oldest strategy.
The messages are the words of its sequence batcher.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar

from services.core.errors import InvalidRequestError

CorrelationId: TypeAlias = int | str


class SequencedRequest(Protocol):
    """What the sequencer needs to know of a request."""

    correlation_id: CorrelationId
    starts: bool
    ends: bool
    enqueued_ns: int


RequestT = TypeVar("RequestT", bound=SequencedRequest)
InstanceT = TypeVar("InstanceT")


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencePolicy:
    """How sequences share instances.

    Attributes:
        model: For messages.
        slots: Sequences bound to one instance at a time, >= 1.
        max_batch_size: Requests in one execution, >= 1.
        keeps_slots: Whether a sequence keeps one row of the batch (direct); else
            the oldest requests make the batch, in any row (oldest).
        max_idle_ns: After so long without a request a sequence has ended.
        max_queue_delay_ns: How long the oldest request may wait for company.
        minimum_utilization: Share of the slots that must be ready to go before
            the delay is over; direct only.
        preferred_batch_sizes: Worth sending at once; oldest only.
        hold_until: Requests that must have a slot before the first batch goes:
            direct, in all slots together; oldest, the next ones of the sequences
            of an instance. 0: none. Triton's TRITONSERVER_DELAY_SCHEDULER.
        backlog_hold_until: Requests that must wait without a slot besides; only
            together with ``hold_until``, and direct only. Triton's
            TRITONSERVER_BACKLOG_DELAY_SCHEDULER.
    """

    model: str
    slots: int
    max_batch_size: int
    keeps_slots: bool
    max_idle_ns: int
    max_queue_delay_ns: int = 0
    minimum_utilization: float = 0.0
    preferred_batch_sizes: tuple[int, ...] = ()
    hold_until: int = 0
    backlog_hold_until: int = 0

    def __post_init__(self) -> None:
        """Refuse what no instance could do."""
        if self.slots < 1 or self.max_batch_size < 1:
            message = "a sequence batcher needs a slot and a row, at least"
            raise ValueError(message)
        if self.keeps_slots and self.slots > self.max_batch_size:
            message = "direct sequences need a row of the batch each"
            raise ValueError(message)


@dataclass(slots=True, eq=False)
class _Sequence(Generic[RequestT]):
    """One living sequence; ``slot`` is its place on its instance."""

    correlation_id: CorrelationId
    last_active_ns: int
    requests: deque[RequestT] = field(default_factory=deque)
    is_ending: bool = False
    slot: int = -1


@dataclass(frozen=True, slots=True)
class Dispatch(Generic[RequestT, InstanceT]):
    """One execution: row by row a request, or None for a slot with nothing to do."""

    instance: InstanceT
    rows: tuple[RequestT | None, ...]

    @property
    def requests(self) -> tuple[RequestT, ...]:
        """The requests themselves."""
        return tuple(row for row in self.rows if row is not None)


@dataclass(frozen=True, slots=True)
class SequenceStep(Generic[RequestT, InstanceT]):
    """Execute these, and ask again at ``wake_ns`` at the latest."""

    dispatches: tuple[Dispatch[RequestT, InstanceT], ...] = ()
    wake_ns: int | None = None


class Sequencer(Generic[RequestT, InstanceT]):
    """The sequences of one model version, bound and waiting."""

    __slots__ = ("_backlog", "_held", "_places", "_policy", "_sequences")

    def __init__(self, policy: SequencePolicy) -> None:
        """Start with no sequence and no instance."""
        self._policy = policy
        self._sequences: dict[CorrelationId, _Sequence[RequestT]] = {}
        self._backlog: deque[_Sequence[RequestT]] = deque()
        self._places: dict[InstanceT, list[_Sequence[RequestT] | None]] = {}
        # Instances that have had no batch because of ``hold_until``.
        self._held: set[InstanceT] = set()

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return sum(len(s.requests) for s in self._sequences.values())

    def add_instance(self, instance: InstanceT) -> None:
        """Offer the slots of a new instance."""
        self._places[instance] = [None] * self._policy.slots
        if self._policy.hold_until:
            self._held.add(instance)
        self._bind_backlog()

    def remove_instance(self, instance: InstanceT) -> tuple[RequestT, ...]:
        """End the sequences of an instance that is gone; return who waited there.

        Their state is lost: a later request must START anew.
        """
        waiting: list[RequestT] = []
        self._held.discard(instance)
        for sequence in self._places.pop(instance, ()):
            if sequence is not None:
                waiting += sequence.requests
                del self._sequences[sequence.correlation_id]
        return tuple(waiting)

    def enqueue(self, request: RequestT) -> None:
        """Put ``request`` behind the others of its sequence.

        A START for a sequence that lives begins it anew, in the same slot.

        Raises:
            InvalidRequestError: no correlation id, or no START where one is due.
        """
        correlation_id = request.correlation_id
        if not correlation_id:
            message = (
                f"inference request to model '{self._policy.model}' must specify a "
                "non-zero or non-empty correlation ID"
            )
            raise InvalidRequestError(message)
        sequence = self._sequences.get(correlation_id)
        if not request.starts and (sequence is None or sequence.is_ending):
            message = (
                f"inference request for sequence {correlation_id} to model "
                f"'{self._policy.model}' must specify the START flag on the first "
                "request of the sequence"
            )
            raise InvalidRequestError(message)
        if sequence is None:
            sequence = _Sequence(correlation_id, request.enqueued_ns)
            self._sequences[correlation_id] = sequence
            self._backlog.append(sequence)
            self._bind_backlog()
        sequence.requests.append(request)
        sequence.last_active_ns = request.enqueued_ns
        sequence.is_ending = request.ends

    def cancel(self, request: RequestT) -> tuple[RequestT, ...]:
        """End the sequence of a request whose client left while it waited.

        Returns:
            The other waiting requests of the sequence: it cannot go on without
            the one that is missing. Empty if the request does not wait here.
        """
        sequence = self._sequences.get(request.correlation_id)
        if sequence is None or not any(r is request for r in sequence.requests):
            return ()
        others = tuple(r for r in sequence.requests if r is not request)
        self._end(sequence)
        self._bind_backlog()
        return others

    def drain(self) -> tuple[RequestT, ...]:
        """End all sequences; return who waited."""
        waiting = tuple(r for s in self._sequences.values() for r in s.requests)
        self._sequences.clear()
        self._backlog.clear()
        for places in self._places.values():
            places[:] = [None] * len(places)
        return waiting

    def step(
        self, now_ns: int, idle: Collection[InstanceT]
    ) -> SequenceStep[RequestT, InstanceT]:
        """Form the next batches.

        Args:
            now_ns: Monotonic time, never less than in an earlier call.
            idle: The instances that execute nothing now.
        """
        wakes = [self._reap(now_ns, idle)]
        dispatches = []
        for instance in idle:
            dispatch, wake_ns = self._form(instance, now_ns)
            if dispatch is not None:
                dispatches.append(dispatch)
            wakes.append(wake_ns)
        due = [wake_ns for wake_ns in wakes if wake_ns is not None]
        return SequenceStep(tuple(dispatches), min(due, default=None))

    def _reap(self, now_ns: int, idle: Collection[InstanceT]) -> int | None:
        """End sequences that were silent too long; return when to look again."""
        resting = [s for i in idle for s in self._places[i] if s and not s.requests]
        wake_ns = None
        for sequence in resting:
            end_ns = sequence.last_active_ns + self._policy.max_idle_ns
            if end_ns <= now_ns:
                self._end(sequence)
            elif wake_ns is None or end_ns < wake_ns:
                wake_ns = end_ns
        self._bind_backlog()
        return wake_ns

    def _form(
        self, instance: InstanceT, now_ns: int
    ) -> tuple[Dispatch[RequestT, InstanceT] | None, int | None]:
        ready = [s for s in self._places[instance] if s and s.requests]
        if not ready or self._is_held(instance):
            return None, None
        due_ns = min(s.requests[0].enqueued_ns for s in ready)
        due_ns += self._policy.max_queue_delay_ns
        chosen = self._chosen(ready, overdue=now_ns >= due_ns)
        if not chosen:
            return None, due_ns
        taken = {s.slot: self._take(instance, s, now_ns) for s in chosen}
        self._bind_backlog()
        if not self._policy.keeps_slots:
            return Dispatch(instance, tuple(taken.values())), None
        return Dispatch(instance, tuple(map(taken.get, range(max(taken) + 1)))), None

    def _is_held(self, instance: InstanceT) -> bool:
        """Tell whether Triton's test hooks still hold an instance back."""
        if instance not in self._held:
            return False
        policy = self._policy
        if not policy.keeps_slots:
            ready = sum(bool(s and s.requests) for s in self._places[instance])
            if ready >= policy.hold_until:
                self._held.discard(instance)
            return instance in self._held
        bound = sum(
            len(s.requests) for places in self._places.values() for s in places if s
        )
        backlog = sum(len(s.requests) for s in self._backlog)
        if bound >= policy.hold_until and backlog >= policy.backlog_hold_until:
            self._held.clear()
        return instance in self._held

    def _chosen(
        self, ready: list[_Sequence[RequestT]], *, overdue: bool
    ) -> list[_Sequence[RequestT]]:
        """Return the sequences that go now; none to wait for company."""
        policy = self._policy
        if policy.keeps_slots:
            wanted = policy.minimum_utilization * policy.slots
            return ready if overdue or len(ready) >= max(wanted, 1) else []
        oldest = sorted(ready, key=lambda s: s.requests[0].enqueued_ns)
        oldest = oldest[: policy.max_batch_size]
        for size in reversed(policy.preferred_batch_sizes):
            if size <= len(oldest):
                return oldest[:size]
        full = len(oldest) == policy.max_batch_size
        return oldest if overdue or full else []

    def _take(
        self, instance: InstanceT, sequence: _Sequence[RequestT], now_ns: int
    ) -> RequestT:
        request = sequence.requests.popleft()
        sequence.last_active_ns = now_ns
        if request.ends and not sequence.requests:
            # The slot is free for the execution after this one.
            self._places[instance][sequence.slot] = None
            del self._sequences[sequence.correlation_id]
        return request

    def _end(self, sequence: _Sequence[RequestT]) -> None:
        del self._sequences[sequence.correlation_id]
        if sequence in self._backlog:
            self._backlog.remove(sequence)
        for places in self._places.values():
            if sequence.slot >= 0 and places[sequence.slot] is sequence:
                places[sequence.slot] = None

    def _bind_backlog(self) -> None:
        """Give free slots to the sequences that wait for one, in their order."""
        while self._backlog:
            places = max(
                self._places.values(), key=lambda slots: slots.count(None), default=[]
            )
            if None not in places:
                return
            sequence = self._backlog.popleft()
            sequence.slot = places.index(None)
            places[sequence.slot] = sequence
