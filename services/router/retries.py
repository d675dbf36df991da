"""What runs again after a worker was lost, and who is to blame for it. Pure.

The members of a lost batch run again in smaller and smaller groups until the guilty
one stands alone: first in groups of the square root of their number, then one by
one, so that at most three workers die of one request. Such a group runs in
*isolation*, the only suspect on its worker, so that nobody is blamed for what
another did.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Final, Generic, TypeVar

RequestT = TypeVar("RequestT")

# A stream that has outlived another of its worker for so long is sound: it has
# answered several pings since.
_PROVEN_NS: Final = 8_000_000_000


@dataclass(frozen=True, slots=True)
class Group(Generic[RequestT]):
    """Requests that run again together, and whether they are suspected.

    ``worker`` is who was lost with them, at ``lost_ns``; None if nobody was.
    """

    requests: tuple[RequestT, ...]
    is_isolated: bool
    worker: str | None = None
    lost_ns: int = 0

    def may_run_on(self, worker: str, joined_ns: int, now_ns: int) -> bool:
        """Tell whether an instance is no remnant of the worker that was lost.

        A worker that was stopped is not noticed on all its streams at once.
        """
        return (
            worker != self.worker
            or joined_ns >= self.lost_ns
            or now_ns >= self.proven_ns
        )

    @property
    def proven_ns(self) -> int:
        """From when on an instance that is still there may be trusted again."""
        return self.lost_ns + _PROVEN_NS


@dataclass(frozen=True, slots=True)
class Judgement(Generic[RequestT]):
    """Who runs again, in this order, and who has brought down a worker."""

    groups: tuple[Group[RequestT], ...] = ()
    guilty: tuple[RequestT, ...] = ()


def after_loss(
    batch: Sequence[RequestT], *, was_isolated: bool, worker: str, now_ns: int
) -> Judgement[RequestT]:
    """Judge the unanswered requests of a batch whose worker was lost.

    Args:
        batch: Who still waits for an answer.
        was_isolated: Whether they ran as the only suspects on their worker.
        worker: Who was lost.
        now_ns: When; monotonic.
    """
    if was_isolated and len(batch) == 1:
        return Judgement(guilty=tuple(batch))
    size = 1 if was_isolated else isqrt(len(batch))
    return Judgement(
        groups=tuple(
            Group(part, is_isolated=True, worker=worker, lost_ns=now_ns)
            for part in _parts(batch, size)
        )
    )


def after_exhaustion(batch: Sequence[RequestT]) -> tuple[Group[RequestT], ...]:
    """Split a batch of several requests that was too large for its device."""
    parts = _parts(batch, (len(batch) + 1) // 2)
    return tuple(Group(part, is_isolated=False) for part in parts)


def _parts(batch: Sequence[RequestT], size: int) -> Iterator[tuple[RequestT, ...]]:
    for start in range(0, len(batch), max(size, 1)):
        yield tuple(batch[start : start + size])


class Isolation:
    """On which workers a suspected group runs: no more than one on each.

    One for all models of a router: a worker that dies takes all of them along.
    """

    __slots__ = ("_taken", "_waiting")

    def __init__(self) -> None:
        """Suspect nobody."""
        self._taken: set[str] = set()
        self._waiting: dict[Callable[[], None], None] = {}

    def is_free(self, worker: str) -> bool:
        """Tell whether no suspected group runs on ``worker``."""
        return worker not in self._taken

    def take(self, worker: str) -> None:
        """Note that a suspected group runs on ``worker`` now."""
        self._taken.add(worker)

    def wait(self, callback: Callable[[], None]) -> None:
        """Let ``callback`` be among the next that ``release`` returns."""
        self._waiting[callback] = None

    def release(self, worker: str) -> tuple[Callable[[], None], ...]:
        """Note that the group has left ``worker``; return who waited for that."""
        self._taken.discard(worker)
        waiting = tuple(self._waiting)
        self._waiting.clear()
        return waiting
