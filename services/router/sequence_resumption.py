"""What it takes that a sequence goes on elsewhere when its worker is lost.

Only of models that say so (parameter nereid_state_checkpoint): the worker sends the
states along with the answers, and control keeps them.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, TypeAlias

from services.core.completion_queue import Timer
from services.router.pending_request import Execution, Instance
from services.router.sequence import Sequence
from services.router.sequence_request import SequenceRequest
from services.router.state_checkpoints import StateCheckpoints
from services.router.state_notices import restored_notice, states_of

# A request that two workers were lost with has brought them down.
_MOST_LOSSES: Final = 2

OnHome: TypeAlias = Callable[[Sequence[SequenceRequest]], None]


class SequenceResumption:
    """The states of one generation's sequences, on their way there and back."""

    __slots__ = (
        "_after_patience",
        "_arrived",
        "_checkpoints",
        "_generation",
        "_idle_ns",
        "_restored",
    )

    def __init__(
        self,
        checkpoints: StateCheckpoints,
        generation: int,
        idle_ns: int,
        after_patience: Callable[[Callable[[], None]], Timer],
    ) -> None:
        """Begin without a state.

        Args:
            checkpoints: Keeps them.
            generation: Whose they are.
            idle_ns: The silence that they outlast.
            after_patience: Calls back when a sequence has waited for its state for
                too long.
        """
        self._after_patience = after_patience
        self._checkpoints = checkpoints
        self._generation = generation
        self._idle_ns = idle_ns
        # Of executions that have not ended: none of their requests is answered.
        self._arrived: dict[Instance, Mapping[int, bytes]] = {}
        # States for the next instance of their sequence.
        self._restored: dict[int, bytes] = {}

    def arrived(self, instance: Instance, message: bytes) -> None:
        """Take the states that an execution has left behind, before its answers."""
        self._arrived[instance] = states_of(message)

    def answered(self, instance: Instance) -> None:
        """Keep them: the requests they follow are answered."""
        for number, data in self._arrived.pop(instance, {}).items():
            self._checkpoints.save(self._generation, number, data, self._idle_ns)

    def lost(self, instance: Instance, unanswered: Iterable[Execution]) -> None:
        """Note that an instance is gone, and count it against what it executed."""
        self._arrived.pop(instance, None)
        for execution in unanswered:
            for request in execution.batch:
                request.attempts += 1

    def rehome(
        self, sequence: Sequence[SequenceRequest], go_on: OnHome, give_up: OnHome
    ) -> None:
        """Find the state that a sequence needs to go on elsewhere.

        Args:
            sequence: That lost its instance.
            go_on: Called with it when its state is there, or none is needed.
            give_up: Called with it if that cannot be, or not in time.
        """
        if any(r.attempts >= _MOST_LOSSES for r in sequence.requests):
            give_up(sequence)
            return
        number = sequence.held
        first = sequence.requests[0] if sequence.requests else None
        begins = first is not None and (first.starts or first.number != number)
        if not number or begins:
            go_on(sequence)
            return
        overdue = self._after_patience(partial(give_up, sequence))

        def take(data: bytes | None) -> None:
            overdue.cancel()
            if data is None:
                give_up(sequence)
            else:
                self._restored[number] = data
                go_on(sequence)

        self._checkpoints.fetch(self._generation, number, take)

    def restore(self, instance: Instance, number: int) -> None:
        """Give an instance the state of a sequence that goes on there, if it does."""
        data = self._restored.pop(number, None)
        if data is not None:
            instance.tell(restored_notice(data))

    def ended(self, number: int) -> None:
        """Let go of what is kept of a sequence's life that is over."""
        self._restored.pop(number, None)
        self._checkpoints.forget(self._generation, number)
