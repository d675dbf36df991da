"""The response cache that routers share, reached through control.

A lookup is bounded in time, and one that fails is a miss. After a failure nobody is
asked for a while: so a slow or absent Redis costs one request a second its delay.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import grpc

from protos import control_pb2
from services.core.completion_queue import UNLIMITED_MESSAGES, Reactor

_FIND: Final = "/nereid.control.ResponseControl/Find"
_KEEP: Final = "/nereid.control.ResponseControl/Keep"
_FIND_TIMEOUT_S: Final = 0.1
_KEEP_TIMEOUT_S: Final = 1.0
_REST_NS: Final = 1_000_000_000
# Of each kind under way at once; what is more is a miss, or is not kept.
_MOST: Final = 256

Found: TypeAlias = Callable[[bytes | None], None]


class SharedResponses:
    """Packed responses by key; on the reactor's thread.

    Attributes:
        capacity_bytes: 0: it is not this router's.
        size_bytes: 0 likewise.
        hits: Lookups that found something.
        misses: Lookups that did not, or not in time.
        evictions: Entries that had to go for ours.
        lookup_ns: What all lookups took together.
        insertion_ns: The same of insertions.
    """

    def __init__(
        self,
        target: str,
        reactor: Reactor,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Dial control when first needed."""
        self.capacity_bytes = self.size_bytes = 0
        self.hits = self.misses = self.evictions = 0
        self.lookup_ns = self.insertion_ns = 0
        self._reactor = reactor
        self._now_ns = now_ns
        self._rests_until_ns = 0
        self._finding = self._keeping = 0
        self._channel = grpc.insecure_channel(target, options=UNLIMITED_MESSAGES)
        self._find = self._channel.unary_unary(
            _FIND,
            control_pb2.FindResponse.SerializeToString,
            control_pb2.FoundResponse.FromString,
        )
        self._keep = self._channel.unary_unary(
            _KEEP,
            control_pb2.KeepResponse.SerializeToString,
            control_pb2.KeptResponse.FromString,
        )

    def __len__(self) -> int:
        """Return 0: the entries are not this router's."""
        return 0

    def find(self, key: bytes, done: Found) -> None:
        """Look for a response; ``done`` is called once, now or later."""
        began_ns = self._now_ns()
        if began_ns < self._rests_until_ns or self._finding >= _MOST:
            self.misses += 1
            done(None)
            return
        self._finding += 1
        future = self._find.future(
            control_pb2.FindResponse(key=key), timeout=_FIND_TIMEOUT_S
        )
        found = functools.partial(self._found, done=done, began_ns=began_ns)
        future.add_done_callback(self._on_loop(found))

    def keep(self, key: bytes, response: bytes) -> None:
        """Have a response kept, if that is possible now."""
        began_ns = self._now_ns()
        if began_ns < self._rests_until_ns or self._keeping >= _MOST:
            return
        self._keeping += 1
        future = self._keep.future(
            control_pb2.KeepResponse(key=key, response=response),
            timeout=_KEEP_TIMEOUT_S,
        )
        kept = functools.partial(self._kept, began_ns=began_ns)
        future.add_done_callback(self._on_loop(kept))

    def close(self) -> None:
        """Hang up; lookups that are under way are misses."""
        self._channel.close()

    def _on_loop(self, take: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return what has a future's outcome taken by the reactor's thread."""

        def ended(future: Any) -> None:  # noqa: ANN401 - a call and a future at once
            outcome = None
            if future.code() is grpc.StatusCode.OK:
                outcome = future.result()
            self._reactor.call_soon_threadsafe(functools.partial(take, outcome))

        return ended

    def _found(
        self, outcome: control_pb2.FoundResponse | None, *, done: Found, began_ns: int
    ) -> None:
        self._finding -= 1
        now_ns = self._now_ns()
        self.lookup_ns += now_ns - began_ns
        if outcome is None:
            self._rests_until_ns = now_ns + _REST_NS
        if outcome is None or not outcome.is_found:
            self.misses += 1
            done(None)
            return
        self.hits += 1
        done(outcome.response)

    def _kept(self, outcome: control_pb2.KeptResponse | None, *, began_ns: int) -> None:
        self._keeping -= 1
        self.insertion_ns += self._now_ns() - began_ns
        if outcome is not None:
            self.evictions += outcome.evicted
