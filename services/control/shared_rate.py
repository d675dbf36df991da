"""One of ``rate`` requests is traced: of those that all routers get together. Pure.

Each router counts its own requests and samples whenever it has come to ``rate``, so
that nobody has to be asked. What several of them have counted on their way to the next
sample adds up; when that is enough for one, it is moved to one router, which then
samples its next request. A move takes from one what it gives to another: nothing is
counted twice, whatever the routers have counted meanwhile.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a router has come in one session.

    Attributes:
        session: Of the trace settings.
        counted: Its requests since the last that it sampled.
        moves: How many moves it has obeyed.
    """

    session: int
    counted: int
    moves: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Have a router count ``by`` requests more, or fewer if that is below 0."""

    router: str
    session: int
    by: int


@dataclass(slots=True)
class _Place:
    """What is known of one router in one session.

    Attributes:
        counted: As it last said, in answer to the last move.
        moves: How many it was sent.
        is_settled: Whether it has told of all of them.
    """

    counted: int = 0
    moves: int = 0
    is_settled: bool = False


class SharedRate:
    """Knows how far all routers have come together."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._sessions: dict[int, dict[str, _Place]] = {}

    def told(self, router: str, progress: Progress, rate: int) -> tuple[Move, ...]:
        """Take in how far a router has come.

        Args:
            router: Who says so.
            progress: How far.
            rate: One of so many requests of the session is sampled.

        Returns:
            Moves that add up to 0, the first to ``router``; none while the routers
            have not counted enough.
        """
        places = self._sessions.setdefault(progress.session, {})
        own = places.setdefault(router, _Place())
        own.is_settled = progress.moves == own.moves
        if not own.is_settled:
            return ()  # more will be heard of it
        own.counted = progress.counted
        others = {
            name: place
            for name, place in places.items()
            if name != router and place.is_settled and place.counted > 0
        }
        missing = rate - own.counted
        if missing <= 0 or sum(each.counted for each in others.values()) < missing:
            return ()
        moves = []
        left = missing
        for name, place in others.items():
            taken = min(place.counted, left)
            left -= taken
            if taken:
                moves.append(self._move(name, place, progress.session, -taken))
        return (self._move(router, own, progress.session, missing), *moves)

    def keep(self, sessions: Iterable[int]) -> None:
        """Forget all other sessions, and begin these anew with every router.

        For when routers are given settings: they then forget the moves that they have
        obeyed, not what they have counted.
        """
        self._sessions = {number: {} for number in sessions}

    def forget(self, router: str) -> None:
        """Forget a router that has left, or comes anew."""
        for places in self._sessions.values():
            places.pop(router, None)

    def _move(self, router: str, place: _Place, session: int, by: int) -> Move:
        place.counted += by
        place.moves += 1
        place.is_settled = False
        return Move(router=router, session=session, by=by)
