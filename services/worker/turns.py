"""The shell around the rate limiter: locks, and whom it tells.

A router that has requests for a limited instance asks for a turn, and forms the batch
only when the turn is there: until then its requests wait in their queue, where more
join them, and where they may expire or be withdrawn. So waiting for resources counts
as queueing, as with Triton. It costs a round trip for each execution of a limited
instance, and nothing elsewhere: an instance without a claim never looks here.
"""

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from services.core.errors import ConfigError
from services.core.model_config import ModelConfig
from services.core.model_config_placement import RateLimiter as RateLimiterConfig
from services.core.rate_limits import ResourceAmount
from services.worker.backend import InstancePlace
from services.worker.rate_limiter import Limited, RateLimiter


@dataclass(slots=True, eq=False)
class Claim:
    """Who may send an instance its batches: one stream of a router.

    Attributes:
        tell: Called when it is its turn, by any thread; must not block.
        has_turn: Whether it is.
    """

    tell: Callable[[], None]
    has_turn: bool = False


class Turns:
    """The turns of all limited instances of a device; from any thread."""

    def __init__(
        self, amounts: Collection[ResourceAmount] = (), device: int = 0
    ) -> None:
        """Begin without instances; see RateLimiter."""
        self._lock = threading.Lock()
        self._limiter: RateLimiter[Claim] = RateLimiter(amounts, device)

    def admit(
        self, config: ModelConfig, places: Iterable[InstancePlace]
    ) -> "tuple[InstanceTurns | None, ...]":
        """Take the instances of a model in; None for those that need no resource.

        Raises:
            ConfigError: one could never execute, and none is in; see RateLimiter.
        """
        admitted: list[InstanceTurns | None] = []
        try:
            for place in places:
                limits = limits_of(config, place)
                admitted.append(self._admit(limits) if limits else None)
        except ConfigError:
            close_all(admitted)
            raise
        return tuple(admitted)

    def _admit(self, limits: RateLimiterConfig) -> "InstanceTurns":
        with self._lock:
            return InstanceTurns(self._limiter.add(limits), self._limiter, self._lock)


@dataclass(slots=True, eq=False)
class InstanceTurns:
    """The turns of one instance."""

    _instance: Limited[Claim]
    _limiter: RateLimiter[Claim]
    _lock: threading.Lock
    _claims: set[Claim] = field(default_factory=set)

    def claim(self, tell: Callable[[], None]) -> Claim:
        """Let someone take part who is told when it is its turn."""
        claim = Claim(tell)
        with self._lock:
            self._claims.add(claim)
        return claim

    def ask(self, claim: Claim) -> None:
        """Want a turn; never blocks."""
        with self._lock:
            granted = self._take_turns(self._limiter.ask(self._instance, claim))
        _tell(granted)

    def take(self, claim: Claim) -> None:
        """Return when it is the claim's turn, which nobody need be told."""
        come = threading.Event()
        with self._lock:
            if claim.has_turn:
                return
            tell, claim.tell = claim.tell, come.set
            granted = self._take_turns(self._limiter.ask(self._instance, claim))
        _tell(granted)
        come.wait()
        claim.tell = tell

    def end(self, claim: Claim, *, is_executed: bool = True) -> None:
        """End the claim's turn, if it has one."""
        with self._lock:
            claim.has_turn = False
            ended = self._limiter.end(self._instance, claim, int(is_executed))
            granted = self._take_turns(ended)
        _tell(granted)

    def leave(self, claim: Claim) -> None:
        """Let a claim go, with its turn."""
        with self._lock:
            self._claims.discard(claim)
            claim.has_turn = False
            granted = self._take_turns(self._limiter.leave(self._instance, claim))
        _tell(granted)

    def close(self) -> None:
        """Take the instance out; nobody asks any more."""
        for claim in tuple(self._claims):
            self.leave(claim)
        with self._lock:
            granted = self._take_turns(self._limiter.remove(self._instance))
        _tell(granted)

    @staticmethod
    def _take_turns(granted: tuple[Claim, ...]) -> tuple[Claim, ...]:
        for claim in granted:
            claim.has_turn = True
        return granted


def limits_of(config: ModelConfig, place: InstancePlace) -> RateLimiterConfig | None:
    """Return what an instance must hold to execute; None: nothing."""
    if place.group >= len(config.instance_groups):
        return None
    limits = config.instance_groups[place.group].rate_limiter
    return limits if limits is not None and limits.resources else None


def close_all(turns: Iterable[InstanceTurns | None]) -> None:
    """Take these instances out."""
    for each in turns:
        if each is not None:
            each.close()


def _tell(granted: Iterable[Claim]) -> None:
    """Call whose turn it is; without a lock, for they take locks of their own."""
    for claim in granted:
        claim.tell()
