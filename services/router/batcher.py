"""When a batch goes, and who is in it: a pure step over a queue.

Rows are counted, not requests: a request of three rows fills three places.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

from services.router.request_queue import Queued, RequestQueue

RequestT = TypeVar("RequestT", bound=Queued)


class Line(Protocol[RequestT]):
    """Who waits, first to be executed first: a deque, or a RequestQueue."""

    def __len__(self) -> int:
        """Return how many wait."""
        ...

    def __iter__(self) -> Iterator[RequestT]:
        """Yield them in their order."""
        ...

    def append(self, request: RequestT, /) -> None:
        """Put ``request`` where it belongs."""
        ...

    def popleft(self) -> RequestT:
        """Take out the first."""
        ...

    def remove(self, request: RequestT, /) -> None:
        """Take out ``request``; ValueError if it is not here."""
        ...

    def clear(self) -> None:
        """Forget everyone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPolicy:
    """When the batcher lets a batch go.

    Attributes:
        max_batch_size: Rows in one execution, >= 1.
        max_requests: Requests in one execution; 1 for models without a dynamic
            batcher, 0 for any number.
        preferred_batch_sizes: Row counts worth sending at once, ascending; may
            be empty. A batch never grows past the largest of them.
        max_queue_delay_ns: How long the oldest request may wait for company.
        hold_until: Requests that must be waiting before the first batch goes; 0:
            none. Triton's test hook TRITONSERVER_DELAY_SCHEDULER.
    """

    max_batch_size: int
    max_requests: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_ns: int = 0
    hold_until: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that no batch can have."""
        if self.max_batch_size < 1:
            message = f"max_batch_size must be >= 1, got {self.max_batch_size}"
            raise ValueError(message)
        if self.max_requests < 0 or self.max_queue_delay_ns < 0:
            message = "max_requests and max_queue_delay_ns must not be negative"
            raise ValueError(message)
        sizes = self.preferred_batch_sizes
        if list(sizes) != sorted(set(sizes)) or any(
            not 1 <= size <= self.max_batch_size for size in sizes
        ):
            message = f"preferred sizes {sizes} must ascend within 1..max_batch_size"
            raise ValueError(message)

    @property
    def largest_batch(self) -> int:
        """Rows that a batch of several requests may have."""
        sizes = self.preferred_batch_sizes
        return sizes[-1] if sizes else self.max_batch_size


@dataclass(frozen=True, slots=True)
class Step(Generic[RequestT]):
    """Send this batch (empty: none), and ask again at ``wake_ns`` at the latest."""

    batch: tuple[RequestT, ...] = ()
    wake_ns: int | None = None


class Batcher(Generic[RequestT]):
    """The queue of one model version, and what leaves it together.

    Attributes:
        rows: Of everyone who waits.
        size_bytes: Of everyone who waits.
    """

    __slots__ = (
        "_held",
        "_largest",
        "_policies",
        "_policy",
        "_preferred",
        "_queue",
        "rows",
        "size_bytes",
    )

    def __init__(
        self, policy: BatchPolicy, policies: RequestQueue[RequestT] | None = None
    ) -> None:
        """Start empty.

        Args:
            policy: When a batch goes.
            policies: An empty queue with priorities and timeouts; None: first
                in, first out.
        """
        self._policy = policy
        self._policies = policies
        self._queue: Line[RequestT] = deque() if policies is None else policies
        self._held = policy.hold_until
        self._largest = policy.largest_batch
        self._preferred = frozenset(policy.preferred_batch_sizes)
        self.rows = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether waiting longer cannot make the next batch larger."""
        return self.rows >= self._largest or (
            0 < self._policy.max_requests <= len(self._queue)
        )

    @property
    def largest_batch(self) -> int:
        """Rows that a batch of several requests may have now."""
        return self._largest

    @property
    def has_policies(self) -> bool:
        """Whether requests may be refused, expire or overtake each other."""
        return self._policies is not None

    @property
    def next_expiry_ns(self) -> int | None:
        """When ``expire`` should be asked next; None: not before a request comes."""
        return None if self._policies is None else self._policies.next_expiry_ns

    def limit(self, rows: int) -> None:
        """Form no batch of more than ``rows`` rows again, if requests allow it."""
        self._largest = max(1, min(self._largest, rows))
        self._preferred = frozenset(n for n in self._preferred if n <= self._largest)

    def has_room(self, request: RequestT) -> bool:
        """Tell whether the queue policies let ``request`` wait."""
        return self._policies is None or self._policies.has_room(request)

    def enqueue(self, request: RequestT) -> None:
        """Let ``request`` wait, behind those before it in its priority."""
        self._queue.append(request)
        self.rows += request.rows
        self.size_bytes += len(request.body)

    def remove(self, request: RequestT) -> bool:
        """Take out a request that was given up; False if it is not here."""
        try:
            self._queue.remove(request)
        except ValueError:
            return False
        self._count_out((request,))
        return True

    def drain(self) -> tuple[RequestT, ...]:
        """Take out everyone, in order."""
        everyone = tuple(self._queue)
        self._queue.clear()
        self.rows = self.size_bytes = 0
        return everyone

    def expire(self, now_ns: int) -> Sequence[RequestT]:
        """Take out those whose timeout has ended; before each ``step``."""
        if self._policies is None:
            return ()
        expired = self._policies.expire(now_ns)
        self._count_out(expired)
        return expired

    def step(self, now_ns: int) -> Step[RequestT]:
        """Form the next batch, given that an instance is free.

        Args:
            now_ns: Monotonic time, never less than in an earlier call.

        Returns:
            A batch to execute now; or none, and the time when the oldest
            request has waited for company long enough.
        """
        queue = self._queue
        if len(queue) < (self._held or 1):
            return Step()
        self._held = 0
        count, is_due = self._reach()
        if not is_due and self._policy.max_queue_delay_ns:
            due_ns = self._oldest_ns(count) + self._policy.max_queue_delay_ns
            if now_ns < due_ns:
                return Step(wake_ns=due_ns)
        take = queue.popleft
        batch = tuple([take() for _ in range(count)])
        self._count_out(batch)
        return Step(batch)

    def due_ns(self) -> int | None:
        """Return when ``step`` would form a batch; 0: at once, None: no one waits."""
        if len(self._queue) < (self._held or 1):
            return None
        count, is_due = self._reach()
        if is_due or not self._policy.max_queue_delay_ns:
            return 0
        return self._oldest_ns(count) + self._policy.max_queue_delay_ns

    def _reach(self) -> tuple[int, bool]:
        """Return how many from the head fit together, and if they go at once.

        The largest preferred size within reach goes at once, whatever the
        delay. Failing that, everything that fits together goes as soon as it
        can grow no more or the oldest is overdue.

        Source: Triton's user guide, "Dynamic Batcher"; unlike Triton, a batch
        stops at the largest preferred size also when it is overdue.
        """
        largest, preferred = self._largest, self._preferred
        most = self._policy.max_requests
        shape_key = None
        rows = count = best = 0
        is_full = False
        for request in self._queue:
            if not count:
                shape_key = request.shape_key
            elif rows + request.rows > largest or request.shape_key != shape_key:
                is_full = True
                break
            rows += request.rows
            count += 1
            if rows in preferred:
                best = count
            if rows >= largest or count == most:
                is_full = True
                break
        return (best, True) if best else (count, is_full)

    def _oldest_ns(self, count: int) -> int:
        """Return when the oldest of the first ``count`` arrived."""
        return min(request.enqueued_ns for request in islice(self._queue, count))

    def _count_out(self, requests: Sequence[RequestT]) -> None:
        rows = size_bytes = 0
        for request in requests:
            rows += request.rows
            size_bytes += len(request.body)
        self.rows -= rows
        self.size_bytes -= size_bytes
