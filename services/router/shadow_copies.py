"""Copies of requests for the shadow version of a model, and what became of them.

A copy is made when the client has its answer: nobody waits for it. What is under way
is bounded, in number and in bytes; what is more is dropped and counted.
"""

from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from functools import partial
from typing import Final

from services.core.completion_queue import Reactor
from services.core.errors import ServingError
from services.core.shared_memory_region import REGION_PARAMETER
from services.core.statistics_fields import ShadowOutcome
from services.core.wire_format import WireFormatError
from services.router.admission import Admission
from services.router.pending_request import PendingRequest
from services.router.route_scheduler import RouteScheduler
from services.router.same_answers import are_same_answers
from services.router.version_field import with_version

_MOST_COPIES: Final = 64
_MOST_BYTES: Final = 64 << 20
# Answers up to this size are compared where they come.
_INLINE_BYTES: Final = 64 << 10
# What the client's memory holds, it may have changed; what a copy wrote there, it
# would take for its own answer.
_ELSEWHERE: Final = REGION_PARAMETER.encode()


class CopyAllowance:
    """How many copies may be under way in a router, and their bytes."""

    __slots__ = ("_bytes", "_copies", "most_bytes", "most_copies")

    def __init__(
        self, most_copies: int = _MOST_COPIES, most_bytes: int = _MOST_BYTES
    ) -> None:
        """Begin with none under way."""
        self.most_copies = most_copies
        self.most_bytes = most_bytes
        self._copies = self._bytes = 0

    def take(self, size: int) -> bool:
        """Allow one more copy of ``size`` bytes, or return False."""
        if self._copies >= self.most_copies or self._bytes + size > self.most_bytes:
            return False
        self._copies += 1
        self._bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Take note that a copy of ``size`` bytes is over."""
        self._copies -= 1
        self._bytes -= size


class ShadowCopy:
    """A copy on its way: a request without a client."""

    __slots__ = (
        "_owner",
        "answered",
        "attempts",
        "body",
        "enqueued_ns",
        "open",
        "priority",
        "rows",
        "shape_key",
        "size_bytes",
        "timeout_ns",
    )

    def __init__(self, owner: "ShadowCopies", body: bytes, answered: bytes) -> None:
        """Stand for a request whose client was ``answered``."""
        self._owner = owner
        self.body = body
        self.answered = answered
        self.size_bytes = len(body) + len(answered)
        self.rows = 1
        self.shape_key: Hashable = None
        self.enqueued_ns = self.priority = self.timeout_ns = self.attempts = 0
        self.open = True

    def answer(self, message: bytes) -> None:
        """Take a serialized ModelInferResponse."""
        if self.open:
            self.open = False
            self._owner.compare(self, message)

    def fail(self, code: int, details: str) -> None:
        """Take an error."""
        del code, details
        if self.open:
            self.open = False
            self._owner.end(self, ShadowOutcome.FAILED)


class ShadowCopies:
    """Makes the copies for one shadow version, at its lowest priority."""

    def __init__(
        self,
        scheduler: RouteScheduler,
        tolerance: float,
        *,
        admission: Admission,
        allowance: CopyAllowance,
        reactor: Reactor,
        pool: Executor | None,
        now_ns: Callable[[], int],
    ) -> None:
        """Make copies for the version of ``scheduler``.

        Args:
            scheduler: Of the shadow version.
            tolerance: As of ``are_same_answers``.
            admission: Of the router.
            allowance: Shared by all models.
            reactor: Whose thread this is.
            pool: Compares large answers; None: they are compared at once.
            now_ns: The monotonic clock.
        """
        self._scheduler = scheduler
        self._version = scheduler.route.version_text.encode()
        batching = scheduler.route.config.dynamic_batching
        self._priority = batching.priority_levels if batching is not None else 0
        self._tolerance = tolerance
        self._admission = admission
        self._allowance = allowance
        self._reactor = reactor
        self._pool = pool
        self._now_ns = now_ns

    def make(self, request: PendingRequest, answered: bytes) -> None:
        """Copy a request that was answered, if it can be and there is room."""
        copy = ShadowCopy(self, request.body, answered)
        if (
            not self._scheduler.has_instance
            or _ELSEWHERE in request.body
            or not self._allowance.take(copy.size_bytes)
        ):
            self._scheduler.statistics.shadowed(ShadowOutcome.DROPPED)
            return
        # The others of the batch have their answers first.
        self._reactor.call_when_drained(partial(self._begin, copy))

    def compare(self, copy: ShadowCopy, message: bytes) -> None:
        """Take the answer to a copy."""
        if self._pool is None or len(message) <= _INLINE_BYTES:
            self.end(copy, self._outcome(copy, message))
        else:
            self._pool.submit(self._compare_elsewhere, copy, message)

    def end(self, copy: ShadowCopy, outcome: ShadowOutcome) -> None:
        """Count what became of a copy."""
        self._allowance.give_back(copy.size_bytes)
        self._scheduler.statistics.shadowed(outcome)

    def _begin(self, copy: ShadowCopy) -> None:
        try:
            verdict, copy.body = self._admission.admit_to(
                self._scheduler.route, with_version(copy.body, self._version)
            )
        except (ServingError, WireFormatError):
            self.end(copy, ShadowOutcome.FAILED)
            return
        copy.rows = verdict.rows
        copy.shape_key = verdict.shape_key
        copy.priority = self._priority
        copy.enqueued_ns = self._now_ns()
        self._scheduler.enqueue(copy)

    def _outcome(self, copy: ShadowCopy, message: bytes) -> ShadowOutcome:
        if are_same_answers(copy.answered, message, self._tolerance):
            return ShadowOutcome.MATCHED
        return ShadowOutcome.DIFFERED

    def _compare_elsewhere(self, copy: ShadowCopy, message: bytes) -> None:
        outcome = self._outcome(copy, message)
        self._reactor.call_soon_threadsafe(partial(self.end, copy, outcome))
