"""When a batch goes, and who is in it: a pure step over a queue.

Rows are counted, not requests: a request of three rows fills three places.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """What the batcher needs to know of a waiting request."""

    rows: int
    shape_key: Hashable
    enqueued_ns: int


RequestT = TypeVar("RequestT", bound=Queued)


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
    """

    max_batch_size: int
    max_requests: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_ns: int = 0

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
    """The queue of one model version, first in first out."""

    __slots__ = ("_policy", "_preferred", "_queue", "rows")

    def __init__(self, policy: BatchPolicy) -> None:
        """Start empty."""
        self._policy = policy
        self._preferred = frozenset(policy.preferred_batch_sizes)
        self._queue: deque[RequestT] = deque()
        self.rows = 0

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether waiting longer cannot make the next batch larger."""
        policy = self._policy
        return self.rows >= policy.largest_batch or (
            0 < policy.max_requests <= len(self._queue)
        )

    def enqueue(self, request: RequestT) -> None:
        """Put ``request`` at the end."""
        self._queue.append(request)
        self.rows += request.rows

    def put_back(self, batch: tuple[RequestT, ...]) -> None:
        """Put a batch that was not executed at the head again, in its order."""
        self._queue.extendleft(reversed(batch))
        self.rows += sum(request.rows for request in batch)

    def remove(self, request: RequestT) -> bool:
        """Take out a request that was given up; False if it is not here."""
        try:
            self._queue.remove(request)
        except ValueError:
            return False
        self.rows -= request.rows
        return True

    def drain(self) -> tuple[RequestT, ...]:
        """Take out everyone, in order."""
        everyone = tuple(self._queue)
        self._queue.clear()
        self.rows = 0
        return everyone

    def step(self, now_ns: int) -> Step[RequestT]:
        """Form the next batch, given that an instance is free.

        Args:
            now_ns: Monotonic time, never less than in an earlier call.

        Returns:
            A batch to execute now; or none, and the time when the oldest
            request has waited for company long enough.
        """
        queue = self._queue
        if not queue:
            return Step()
        due_ns = queue[0].enqueued_ns + self._policy.max_queue_delay_ns
        count = self._ready_count(overdue=now_ns >= due_ns)
        if not count:
            return Step(wake_ns=due_ns)
        take = queue.popleft
        batch = tuple([take() for _ in range(count)])
        for request in batch:
            self.rows -= request.rows
        return Step(batch)

    def _ready_count(self, *, overdue: bool) -> int:
        """Return how many from the head should go now; 0 to wait.

        The largest preferred size within reach goes at once, whatever the
        delay. Failing that, everything that fits together goes as soon as it
        can grow no more or the oldest is overdue.

        Source: Triton's user guide, "Dynamic Batcher"; unlike Triton, a batch
        stops at the largest preferred size also when it is overdue.
        """
        policy, preferred = self._policy, self._preferred
        largest, most = policy.largest_batch, policy.max_requests
        shape_key = self._queue[0].shape_key
        rows = count = best = 0
        full = False
        for request in self._queue:
            if count and (
                rows + request.rows > largest or request.shape_key != shape_key
            ):
                full = True
                break
            rows += request.rows
            count += 1
            if rows in preferred:
                best = count
            if rows >= largest or count == most:
                full = True
                break
        return best or (count if full or overdue else 0)
