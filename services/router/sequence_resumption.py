"""What it takes that a sequence goes on elsewhere when its worker is lost.

Only of models that say so (parameter nereid_state_checkpoint): the worker sends the
states along with the answers, and control keeps them.
"""

from collections.abc import Iterable, Mapping

from services.router.pending_request import Execution, Instance
from services.router.sequence import Sequence
from services.router.sequence_request import SequenceRequest
from services.router.state_checkpoints import OnState, StateCheckpoints
from services.router.state_notices import restored_notice, states_of

# A request that two workers were lost with has brought them down.
_MOST_LOSSES = 2


class SequenceResumption:
    """The states of one generation's sequences, on their way there and back."""

    __slots__ = ("_arrived", "_checkpoints", "_generation", "_idle_ns", "_restored")

    def __init__(
        self, checkpoints: StateCheckpoints, generation: int, idle_ns: int
    ) -> None:
        """Keep states by ``checkpoints``; ``idle_ns`` is the silence they outlast."""
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

    def is_hopeless(self, sequence: Sequence[SequenceRequest]) -> bool:
        """Return whether a sequence's next request has brought down too many."""
        return any(r.attempts >= _MOST_LOSSES for r in sequence.requests)

    def fetch(self, sequence: Sequence[SequenceRequest], ready: OnState) -> None:
        """Call ``ready`` with what the sequence needs: b"" if it needs nothing."""
        number = sequence.held
        first = sequence.requests[0] if sequence.requests else None
        begins = first is not None and (first.starts or first.number != number)
        if not number or begins:
            ready(b"")
            return

        def take(data: bytes | None) -> None:
            if data is not None:
                self._restored[number] = data
            ready(data)

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
