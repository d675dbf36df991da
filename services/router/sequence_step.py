"""What the sequencer decides, as values."""

from dataclasses import dataclass
from typing import Generic

from services.router.sequence import RequestT, Sequence
from services.router.sequence_slots import InstanceT


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
    """Execute these, refuse those, and ask again at ``wake_ns`` at the latest.

    ``expired`` waited too long for a slot: their sequences have ended.
    """

    dispatches: tuple[Dispatch[RequestT, InstanceT], ...] = ()
    expired: tuple[RequestT, ...] = ()
    wake_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Orphans(Generic[RequestT]):
    """What becomes of the sequences of an instance that is gone.

    Attributes:
        lost: The requests of those that have ended.
        homeless: The sequences that may go on elsewhere, once whoever asks has what
            they need and calls ``resume``.
    """

    lost: tuple[RequestT, ...] = ()
    homeless: tuple[Sequence[RequestT], ...] = ()
