"""The states of the sequences that one router has on one instance.

Of models with implicit state (``state`` in sequence_batching): what the model put out
as a state with one request is an input with the next of the same sequence.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias


class State(NamedTuple):
    """One state of one sequence.

    Attributes:
        shape: One row, without the batch dimension.
        data: As on the wire (BYTES: each element behind its length).
    """

    shape: tuple[int, ...]
    data: bytes


States: TypeAlias = tuple[State, ...]
"""All states of a sequence, in the configuration's order."""


class SequenceStates:
    """States by the number of the sequence; for the thread that serves the router.

    The router says when a sequence is over. Only then, or when the stream ends, is
    its state let go.
    """

    __slots__ = ("_by_number", "_changed")

    def __init__(self) -> None:
        """Begin without a sequence."""
        self._by_number: dict[int, States] = {}
        self._changed: set[int] = set()

    def __len__(self) -> int:
        """Return how many sequences have a state."""
        return len(self._by_number)

    def of(self, number: int) -> States | None:
        """Return the states of a sequence; None if it has none yet."""
        return self._by_number.get(number)

    def keep(self, number: int, states: States) -> None:
        """Replace the states of a sequence by what an execution made of them."""
        self._by_number[number] = states
        self._changed.add(number)

    def restore(self, number: int, states: States) -> None:
        """Have a sequence go on that was elsewhere before."""
        self._by_number[number] = states

    def take_changed(self) -> list[tuple[int, States]]:
        """Return, once, the states that executions have changed."""
        changed = [(number, self._by_number[number]) for number in self._changed]
        self._changed.clear()
        return changed

    def end(self, numbers: Iterable[int]) -> None:
        """Let go of the states of sequences that are over."""
        for number in numbers:
            self._by_number.pop(number, None)
            self._changed.discard(number)

    def numbers(self) -> Collection[int]:
        """Return whose states are kept."""
        return self._by_number.keys()
