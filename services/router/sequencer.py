"""Which request of which sequence is executed next, and where: pure.

A sequence is the requests with one correlation id, from the one with START to the
one with END. It is bound to a slot of one instance for its whole life, since that
instance may keep state for it; its requests are executed one after the other.

Source: Triton's user guide, "Stateful Models": the direct and the oldest strategy.
The messages are the words of its sequence batcher.
"""

from collections.abc import Collection
from typing import Generic

from services.core.errors import InvalidRequestError
from services.router.sequence import CorrelationId, RequestT, Sequence
from services.router.sequence_policy import SequencePolicy
from services.router.sequence_slots import InstanceT, SequenceSlots
from services.router.sequence_step import Dispatch, Orphans, SequenceStep


class Sequencer(Generic[RequestT, InstanceT]):
    """The sequences of one model version, bound and waiting."""

    __slots__ = ("_ended", "_held", "_number", "_policy", "_sequences", "_slots")

    def __init__(self, policy: SequencePolicy) -> None:
        """Start with no sequence and no instance."""
        self._policy = policy
        self._sequences: dict[CorrelationId, Sequence[RequestT]] = {}
        self._slots: SequenceSlots[RequestT, InstanceT] = SequenceSlots(policy.slots)
        self._number = 0
        # Lives that are over, by the instance that has their state.
        self._ended: list[tuple[InstanceT | None, int]] = []
        # Instances that have had no batch because of ``hold_until``.
        self._held: set[InstanceT] = set()

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return sum(len(s.requests) for s in self._sequences.values())

    def __contains__(self, correlation_id: CorrelationId) -> bool:
        """Tell whether a sequence lives."""
        return correlation_id in self._sequences

    def add_instance(self, instance: InstanceT) -> None:
        """Offer the slots of a new instance."""
        if self._policy.hold_until:
            self._held.add(instance)
        self._slots.add_instance(instance)

    def remove_instance(
        self, instance: InstanceT, *, may_resume: bool = False
    ) -> Orphans[RequestT]:
        """Take the slots of an instance that is gone away from its sequences.

        They have ended, their state is lost: a later request must START anew. Unless
        they may go on elsewhere; what was being executed is then their next request.
        """
        self._held.discard(instance)
        orphans = self._slots.remove_instance(instance)
        if may_resume:
            for sequence in orphans:
                if sequence.executing is not None:
                    sequence.requests.appendleft(sequence.executing)
                    sequence.executing = None
            return Orphans(homeless=tuple(orphans))
        for sequence in orphans:
            del self._sequences[sequence.correlation_id]
        return Orphans(lost=tuple(r for s in orphans for r in s.requests))

    def resume(self, sequence: Sequence[RequestT]) -> None:
        """Have a sequence that lost its instance go on, before all that wait."""
        if self._sequences.get(sequence.correlation_id) is sequence:
            self._slots.wait_first(sequence)

    def give_up(self, sequence: Sequence[RequestT]) -> tuple[RequestT, ...]:
        """End a sequence; return the requests that waited."""
        if self._sequences.get(sequence.correlation_id) is not sequence:
            return ()
        self._end(sequence)
        return tuple(sequence.requests)

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
            sequence = Sequence(correlation_id, request.enqueued_ns)
            self._sequences[correlation_id] = sequence
            self._slots.wait(sequence)
        if request.starts:
            self._number += 1
            sequence.number = self._number
        request.number = sequence.number
        sequence.add(request)

    def cancel(self, request: RequestT) -> tuple[RequestT, ...]:
        """End the sequence of a request whose client left before its answer.

        Returns:
            The waiting requests of the sequence but this one: it cannot go on
            without the one that is missing.
        """
        sequence = self._sequences.get(request.correlation_id)
        if sequence is None:
            return ()
        is_known = any(r is request for r in sequence.requests)
        if not is_known and sequence.executing is not request:
            return ()
        others = tuple(r for r in sequence.requests if r is not request)
        self._end(sequence)
        self._slots.bind_backlog()
        return others

    def completed(self, request: RequestT, *, again: bool = False) -> bool:
        """Note that the execution of a request is over.

        Args:
            request: That was executed.
            again: The model wants it back, as the next one of its sequence; only if
                the model is iterative. False if its sequence has ended meanwhile.
        """
        sequence = self._sequences.get(request.correlation_id)
        if sequence is None or sequence.executing is not request:
            return False
        sequence.executing = None
        if again:
            request.starts = request.ends = False
            sequence.requests.appendleft(request)
        elif (request.ends or self._policy.is_iterative) and not sequence.requests:
            self._end(sequence)
            self._slots.bind_backlog()
        return again

    def drain(self) -> tuple[RequestT, ...]:
        """End all sequences; return who waited."""
        waiting = tuple(r for s in self._sequences.values() for r in s.requests)
        for sequence in tuple(self._sequences.values()):
            self._end(sequence)
        return waiting

    def take_ended(self) -> tuple[tuple[InstanceT | None, int], ...]:
        """Return, once, the lives that are over: their instance and their number.

        None in place of an instance that is gone.
        """
        ended = tuple(self._ended)
        self._ended.clear()
        return ended

    def step(
        self, now_ns: int, idle: Collection[InstanceT]
    ) -> SequenceStep[RequestT, InstanceT]:
        """Form the next batches.

        Args:
            now_ns: Monotonic time, never less than in an earlier call.
            idle: The instances that execute nothing now.
        """
        wakes = [self._reap(now_ns, idle)]
        expired = self._expire(now_ns)
        dispatches = []
        for instance in idle:
            dispatch, wake_ns = self._form(instance, now_ns)
            if dispatch is not None:
                dispatches.append(dispatch)
            wakes.append(wake_ns)
        wakes += [sequence.expires_ns for sequence in self._slots.backlog]
        due = [wake_ns for wake_ns in wakes if wake_ns is not None]
        return SequenceStep(tuple(dispatches), expired, min(due, default=None))

    def _reap(self, now_ns: int, idle: Collection[InstanceT]) -> int | None:
        """End sequences that were silent too long; return when to look again."""
        resting = [s for i in idle for s in self._slots.of(i) if not s.requests]
        wake_ns = None
        for sequence in resting:
            end_ns = sequence.last_active_ns + self._policy.max_idle_ns
            if end_ns <= now_ns:
                self._end(sequence)
            elif wake_ns is None or end_ns < wake_ns:
                wake_ns = end_ns
        self._slots.bind_backlog()
        return wake_ns

    def _expire(self, now_ns: int) -> tuple[RequestT, ...]:
        """End sequences that have waited too long for a slot; return their requests."""
        late = [
            sequence
            for sequence in self._slots.backlog
            if sequence.expires_ns is not None and sequence.expires_ns <= now_ns
        ]
        for sequence in late:
            self._end(sequence)
        return tuple(request for sequence in late for request in sequence.requests)

    def _form(
        self, instance: InstanceT, now_ns: int
    ) -> tuple[Dispatch[RequestT, InstanceT] | None, int | None]:
        ready = [s for s in self._slots.of(instance) if s.requests]
        if not ready or self._is_held(instance):
            return None, None
        due_ns = min(s.requests[0].enqueued_ns for s in ready)
        due_ns += self._policy.max_queue_delay_ns
        chosen = self._chosen(ready, overdue=now_ns >= due_ns)
        if not chosen:
            return None, due_ns
        taken = {s.slot: self._take(instance, s, now_ns) for s in chosen}
        self._slots.bind_backlog()
        if not self._policy.keeps_slots:
            return Dispatch(instance, tuple(taken.values())), None
        return Dispatch(instance, tuple(map(taken.get, range(max(taken) + 1)))), None

    def _is_held(self, instance: InstanceT) -> bool:
        """Tell whether Triton's test hooks still hold an instance back."""
        if instance not in self._held:
            return False
        policy = self._policy
        if not policy.keeps_slots:
            ready = sum(bool(s.requests) for s in self._slots.of(instance))
            if ready >= policy.hold_until:
                self._held.discard(instance)
            return instance in self._held
        bound = sum(len(s.requests) for s in self._slots.bound())
        backlog = sum(len(s.requests) for s in self._slots.backlog)
        if bound >= policy.hold_until and backlog >= policy.backlog_hold_until:
            self._held.clear()
        return instance in self._held

    def _chosen(
        self, ready: list[Sequence[RequestT]], *, overdue: bool
    ) -> list[Sequence[RequestT]]:
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
        self, instance: InstanceT, sequence: Sequence[RequestT], now_ns: int
    ) -> RequestT:
        request = sequence.requests.popleft()
        sequence.last_active_ns = now_ns
        sequence.executing = request
        if sequence.held not in (0, request.number):
            self._ended.append((instance, sequence.held))
        sequence.held = request.number
        if request.ends and not sequence.requests and not self._policy.settles_late:
            # The slot is free for the execution after this one.
            self._end(sequence)
        return request

    def _end(self, sequence: Sequence[RequestT]) -> None:
        """Forget a sequence, wherever it is."""
        del self._sequences[sequence.correlation_id]
        instance = self._slots.forget(sequence)
        if sequence.held:
            self._ended.append((instance, sequence.held))
