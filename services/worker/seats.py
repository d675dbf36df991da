"""Loaded backends, and the generations that share them.

A generation that differs from another one only in its instance groups takes over the
instances that both have: what is loaded and warm need not be loaded again.
"""

import dataclasses
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from services.core.model_config import InstanceGroup
from services.worker.backend import AnyBackend, InstancePlace, ModelSource
from services.worker.runs import AnyRun, guarded

SeatKey: TypeAlias = tuple[str, str, InstanceGroup]
"""A fingerprint, an instance's name, and its group but for the count."""


@dataclass(slots=True, eq=False, kw_only=True)
class Seat:
    """One loaded backend.

    Attributes:
        backend: Itself.
        run: Answers its batches, one at a time, whoever asks.
        key: By which another generation finds it; None if none may.
        users: How many generations have it.
    """

    backend: AnyBackend
    run: AnyRun
    key: SeatKey | None
    users: int = 1


@dataclass(slots=True, eq=False)
class Seats:
    """The seats that may be shared; from any thread."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _by_key: dict[SeatKey, Seat] = field(default_factory=dict)

    def take(self, key: SeatKey | None) -> Seat | None:
        """Return the seat that serves ``key`` already, for one user more."""
        with self._lock:
            seat = self._by_key.get(key) if key is not None else None
            if seat is not None:
                seat.users += 1
            return seat

    def offer(self, seats: Iterable[Seat]) -> None:
        """Let others take these."""
        with self._lock:
            self._by_key.update({seat.key: seat for seat in seats if seat.key})

    def retire(self, seats: Iterable[Seat]) -> None:
        """Let nobody else take these: their generation is on its way out."""
        with self._lock:
            for seat in seats:
                if seat.users == 1:
                    self._withdraw(seat)

    def release(self, seats: Iterable[Seat]) -> list[AnyBackend]:
        """Give seats back; return the backends that nobody has any more."""
        with self._lock:
            free = []
            for seat in seats:
                seat.users -= 1
                if seat.users == 0:
                    self._withdraw(seat)
                    free.append(seat.backend)
            return free

    def _withdraw(self, seat: Seat) -> None:
        if seat.key is not None and self._by_key.get(seat.key) is seat:
            del self._by_key[seat.key]


def seat_key(
    source: ModelSource, place: InstancePlace, fingerprint: str
) -> SeatKey | None:
    """Return what instances must have in common to be the same.

    Args:
        source: With the configuration.
        place: The instance.
        fingerprint: Of all that is loaded but the instance groups; "" if it is not
            known: then nothing is the same.
    """
    groups = source.config.instance_groups
    if not fingerprint or place.group >= len(groups):
        return None
    group = dataclasses.replace(groups[place.group], count=1)
    return (fingerprint, place.name, group)


def exclusive(run: AnyRun) -> AnyRun:
    """Return ``run`` for several callers: one batch at a time."""
    lock = threading.Lock()
    return guarded(run, lambda _: lock)
