"""Who waits, in which order, and until when: priorities and queue policies. Pure.

Within a priority level requests in time come first, in the order of arrival; behind
them those that were delayed, in the order in which they became late; then the next
level. Source: Triton's ModelQueuePolicy and its schedule policy extension.
"""

import heapq
from bisect import insort
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

from services.core.model_config import DynamicBatching, QueuePolicy, TimeoutAction

_PLAIN: Final = QueuePolicy()
# Tickets of requests that have left are swept once they are most of the heap.
_TICKETS_BEFORE_SWEEP: Final = 64


class Queued(Protocol):
    """What a queue needs to know of a waiting request.

    ``priority`` and ``timeout_ns`` are as the client sent them; 0: not at all.
    """

    body: bytes
    rows: int
    shape_key: Hashable
    enqueued_ns: int
    priority: int
    timeout_ns: int


RequestT = TypeVar("RequestT", bound=Queued)


class _Ticket(Generic[RequestT]):
    """When a request becomes late; without a request once that left."""

    __slots__ = ("expires_ns", "request")

    def __init__(self, request: RequestT, expires_ns: int) -> None:
        self.request: RequestT | None = request
        self.expires_ns = expires_ns


class _Level(Generic[RequestT]):
    """One priority and its policy."""

    __slots__ = ("delayed", "in_time", "number", "policy")

    def __init__(self, number: int, policy: QueuePolicy) -> None:
        self.number = number
        self.policy = policy
        self.in_time: OrderedDict[RequestT, _Ticket[RequestT] | None] = OrderedDict()
        self.delayed: OrderedDict[RequestT, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.in_time) + len(self.delayed)


def needs_policies(batching: DynamicBatching) -> bool:
    """Tell whether requests leave in another order than first come, first served.

    Or do not all stay until they are executed.
    """
    policies = (
        batching.default_queue_policy,
        *batching.priority_queue_policies.values(),
    )
    return batching.priority_levels > 1 or any(
        policy.max_queue_size or policy.default_timeout_ns for policy in policies
    )


class RequestQueue(Generic[RequestT]):
    """The waiting requests of one model version, by its queue policies."""

    __slots__ = ("_batching", "_levels", "_order", "_serial", "_tickets")

    def __init__(self, batching: DynamicBatching) -> None:
        """Start empty."""
        self._batching = batching
        self._levels: dict[int, _Level[RequestT]] = {}
        self._order: list[int] = []
        self._tickets: list[tuple[int, int, _Level[RequestT], _Ticket[RequestT]]] = []
        self._serial = count()

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return sum(map(len, self._levels.values()))

    def __iter__(self) -> Iterator[RequestT]:
        """Yield the requests in the order in which they are to be executed."""
        for number in self._order:
            level = self._levels[number]
            yield from level.in_time
            yield from level.delayed

    @property
    def next_expiry_ns(self) -> int | None:
        """When ``expire`` should next be asked; None: not before a request comes."""
        tickets = self._tickets
        while tickets and tickets[0][3].request is None:
            heapq.heappop(tickets)
        return tickets[0][0] if tickets else None

    def has_room(self, request: RequestT) -> bool:
        """Tell whether the policy of its level lets ``request`` wait."""
        number = self._level_of(request)
        most = self._policy_of(number).max_queue_size
        level = self._levels.get(number)
        return not most or level is None or len(level) < most

    def append(self, request: RequestT) -> None:
        """Put ``request``, for which there is room, at the end of its level."""
        number = self._level_of(request)
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level(number, self._policy_of(number))
            insort(self._order, number)
        timeout_ns = level.policy.default_timeout_ns
        if level.policy.allow_timeout_override and 0 < request.timeout_ns < timeout_ns:
            timeout_ns = request.timeout_ns
        if not timeout_ns:
            level.in_time[request] = None
            return
        ticket = _Ticket(request, request.enqueued_ns + timeout_ns)
        level.in_time[request] = ticket
        entry = (ticket.expires_ns, next(self._serial), level, ticket)
        heapq.heappush(self._tickets, entry)

    def popleft(self) -> RequestT:
        """Take out the first.

        Raises:
            IndexError: nobody waits.
        """
        level = self._levels[self._order[0]]
        if level.in_time:
            request, ticket = level.in_time.popitem(last=False)
            self._left(level, ticket)
        else:
            request, _ = level.delayed.popitem(last=False)
            self._left(level, None)
        return request

    def remove(self, request: RequestT) -> None:
        """Take out ``request``.

        Raises:
            ValueError: it is not here.
        """
        level = self._levels.get(self._level_of(request))
        if level is not None and request in level.in_time:
            self._left(level, level.in_time.pop(request))
        elif level is not None and request in level.delayed:
            del level.delayed[request]
            self._left(level, None)
        else:
            message = "the request is not in the queue"
            raise ValueError(message)

    def clear(self) -> None:
        """Forget everyone."""
        self._levels.clear()
        self._order.clear()
        self._tickets.clear()

    def expire(self, now_ns: int) -> list[RequestT]:
        """Delay or take out those who have waited too long; return the latter.

        A request is late from the very nanosecond in which its timeout ends.
        """
        rejected = []
        tickets = self._tickets
        while tickets and tickets[0][0] <= now_ns:
            _, _, level, ticket = heapq.heappop(tickets)
            request = ticket.request
            if request is None:
                continue
            del level.in_time[request]
            if level.policy.timeout_action is TimeoutAction.DELAY:
                level.delayed[request] = None
            else:
                rejected.append(request)
            self._left(level, ticket)
        return rejected

    def _level_of(self, request: RequestT) -> int:
        """Return the level ``request`` belongs to: out of range means the default."""
        batching = self._batching
        if 0 < request.priority <= batching.priority_levels:
            return request.priority
        return batching.default_priority_level

    def _policy_of(self, number: int) -> QueuePolicy:
        batching = self._batching
        default = batching.default_queue_policy
        return batching.priority_queue_policies.get(number, default)

    def _left(self, level: _Level[RequestT], ticket: _Ticket[RequestT] | None) -> None:
        """Drop what is kept of a request that has left its place in ``level``."""
        if ticket is not None:
            ticket.request = None
            if len(self._tickets) > 2 * len(self) + _TICKETS_BEFORE_SWEEP:
                self._tickets = [t for t in self._tickets if t[3].request is not None]
                heapq.heapify(self._tickets)
        if not level:
            del self._levels[level.number]
            self._order.remove(level.number)
