"""The slots that instances have for sequences, and who waits for one. Pure.

Source: Triton's user guide, "Stateful Models": a sequence keeps its slot for its whole
life; what finds none waits in a backlog, in its order.
"""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from services.router.sequence import RequestT, Sequence

InstanceT = TypeVar("InstanceT")


class SequenceSlots(Generic[RequestT, InstanceT]):
    """Which sequence has which slot of which instance."""

    __slots__ = ("_by_instance", "_count", "backlog")

    def __init__(self, count: int) -> None:
        """Begin without an instance; each will have ``count`` slots."""
        self._count = count
        self._by_instance: dict[InstanceT, list[Sequence[RequestT] | None]] = {}
        # Those that wait for a slot, the oldest first.
        self.backlog: deque[Sequence[RequestT]] = deque()

    def add_instance(self, instance: InstanceT) -> None:
        """Offer the slots of a new instance."""
        self._by_instance[instance] = [None] * self._count
        self.bind_backlog()

    def remove_instance(self, instance: InstanceT) -> list[Sequence[RequestT]]:
        """Take the slots of an instance away; return who had one."""
        return [s for s in self._by_instance.pop(instance, ()) if s is not None]

    def of(self, instance: InstanceT) -> Iterator[Sequence[RequestT]]:
        """Yield the sequences of an instance, by their slots."""
        return (s for s in self._by_instance[instance] if s is not None)

    def bound(self) -> Iterator[Sequence[RequestT]]:
        """Yield all sequences that have a slot."""
        return (s for instance in self._by_instance for s in self.of(instance))

    def instance_of(self, sequence: Sequence[RequestT]) -> InstanceT | None:
        """Return where a sequence has its slot; None while it has none."""
        if sequence.slot < 0:
            return None
        for instance, slots in self._by_instance.items():
            if slots[sequence.slot] is sequence:
                return instance
        return None

    def wait(self, sequence: Sequence[RequestT]) -> None:
        """Give a sequence a slot, or a place in the backlog."""
        self.backlog.append(sequence)
        self.bind_backlog()

    def wait_first(self, sequence: Sequence[RequestT]) -> None:
        """Give a sequence that had a slot before the next one that is free."""
        sequence.slot, sequence.expires_ns = -1, None
        self.backlog.appendleft(sequence)
        self.bind_backlog()

    def release(self, instance: InstanceT, sequence: Sequence[RequestT]) -> None:
        """Take a sequence's slot away; nobody gets it yet."""
        self._by_instance[instance][sequence.slot] = None

    def forget(self, sequence: Sequence[RequestT]) -> InstanceT | None:
        """Take a sequence out; return where it had a slot."""
        instance = self.instance_of(sequence)
        if instance is not None:
            self.release(instance, sequence)
        elif sequence in self.backlog:
            self.backlog.remove(sequence)
        return instance

    def clear(self) -> None:
        """Take every sequence out."""
        self.backlog.clear()
        for slots in self._by_instance.values():
            slots[:] = [None] * self._count

    def bind_backlog(self) -> None:
        """Give free slots to those that wait, where most are free."""
        while self.backlog:
            slots = max(
                self._by_instance.values(), key=lambda s: s.count(None), default=[]
            )
            if None not in slots:
                return
            sequence = self.backlog.popleft()
            sequence.slot = slots.index(None)
            slots[sequence.slot] = sequence
