"""Requests for models that are not loaded, until they are. Pure.

Who waits is bounded in number for each model, and in bytes over all; what is more is
refused at once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from services.core.errors import ModelNotReadyError, OverloadedError, ServingError
from services.router.pending_request import PendingRequest, refuse

MOST_REQUESTS: Final = 1024
_TIMEOUT_TEXT: Final = "Request timeout expired"


@dataclass(frozen=True, slots=True)
class _Guest:
    model: str
    size_bytes: int
    since_ns: int
    until_ns: int
    go_on: Callable[[], None]


class WaitingRoom:
    """A ``Taker`` of requests that cannot be admitted yet.

    Attributes:
        waits: By model, how many requests have ever waited, and how long; ns.
    """

    def __init__(
        self,
        most_bytes: int,
        now_ns: Callable[[], int],
        most_requests: int = MOST_REQUESTS,
    ) -> None:
        """Begin with nobody.

        Args:
            most_bytes: Of all requests here.
            now_ns: The monotonic clock.
            most_requests: Of one model.
        """
        self.waits: dict[str, tuple[int, int]] = {}
        self._most_bytes = most_bytes
        self._most_requests = most_requests
        self._now_ns = now_ns
        self._size_bytes = 0
        self._guests: dict[str, dict[PendingRequest, _Guest]] = {}

    @property
    def wanted(self) -> tuple[str, ...]:
        """The models that somebody waits for."""
        return tuple(sorted(self._guests))

    @property
    def next_expiry_ns(self) -> int | None:
        """When the first request has waited long enough; None if none ever has."""
        times = [guest.until_ns for guest in self._everyone() if guest.until_ns]
        return min(times, default=None)

    def enter(
        self,
        request: PendingRequest,
        model: str,
        *,
        size_bytes: int,
        go_on: Callable[[], None],
        timeout_ns: int = 0,
    ) -> None:
        """Have a request wait for a model, or refuse it if there is no room.

        Args:
            request: The client's.
            model: What it asks for.
            size_bytes: What it keeps in memory.
            go_on: Called when the model is there.
            timeout_ns: How long it may wait; 0: as long as it takes.
        """
        guests = self._guests.get(model, {})
        is_full = len(guests) >= self._most_requests
        if is_full or self._size_bytes + size_bytes > self._most_bytes:
            text = f"too many requests wait for model '{model}' to be loaded"
            refuse(request, OverloadedError(text))
            return
        now_ns = self._now_ns()
        until_ns = now_ns + timeout_ns if timeout_ns else 0
        self._size_bytes += size_bytes
        guest = _Guest(model, size_bytes, now_ns, until_ns, go_on)
        self._guests.setdefault(model, {})[request] = guest

    def enqueue(self, request: PendingRequest) -> None:
        """Never: who is here was not admitted."""
        raise NotImplementedError

    def time(self, request: PendingRequest) -> None:
        """Never: who is here was not admitted."""
        raise NotImplementedError

    def forget(self, request: PendingRequest) -> None:
        """Drop a request whose client has left."""
        for model, guests in tuple(self._guests.items()):
            if request in guests:
                self._leave(guests.pop(request))
            if not guests:
                del self._guests[model]

    def let_in(self, is_there: Callable[[str], bool]) -> None:
        """Let everybody go on whose model is there."""
        for model in [each for each in self._guests if is_there(each)]:
            for guest in self._guests.pop(model).values():
                self._leave(guest)
                guest.go_on()

    def refuse(self, model: str, reason: str) -> None:
        """Tell everybody who waits for a model that it cannot be loaded."""
        self._refuse(self._guests.pop(model, {}), ModelNotReadyError(reason))

    def refuse_all(self, error: ServingError) -> None:
        """Answer everybody with ``error``."""
        everyone, self._guests = self._guests, {}
        for guests in everyone.values():
            self._refuse(guests, error)

    def expire(self) -> None:
        """Refuse who has waited long enough."""
        now_ns = self._now_ns()
        late = [
            (request, guest)
            for guests in self._guests.values()
            for request, guest in guests.items()
            if guest.until_ns and guest.until_ns <= now_ns
        ]
        for request, _ in late:
            self.forget(request)
            refuse(request, OverloadedError(_TIMEOUT_TEXT))

    def _refuse(
        self, guests: Mapping[PendingRequest, _Guest], error: ServingError
    ) -> None:
        for request, guest in guests.items():
            self._leave(guest)
            refuse(request, error)

    def _leave(self, guest: _Guest) -> None:
        self._size_bytes -= guest.size_bytes
        count, ns = self.waits.get(guest.model, (0, 0))
        waited_ns = self._now_ns() - guest.since_ns
        self.waits[guest.model] = (count + 1, ns + waited_ns)

    def _everyone(self) -> Iterable[_Guest]:
        for guests in self._guests.values():
            yield from guests.values()
