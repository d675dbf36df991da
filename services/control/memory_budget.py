"""Which models are loaded and evicted so that a memory budget holds. Pure.

The rules:

- A model is loaded only when it fits beside everything that takes memory now: what
  is being unloaded still does.
- What has to go is idle, and was used longest ago. Pinned models and models in use
  never go.
- Who asked first is served first: a large model is not overtaken for ever by small
  ones. It waits for others to become idle, but not longer than the patience.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A model that takes memory.

    Attributes:
        model: Its name.
        size_bytes: What it takes, or is expected to take.
        last_used_ns: Monotonic; the last request, or its loading.
        is_pinned: It stays whatever else needs room.
        is_in_use: It has requests, is being loaded, or somebody waits for it.
        is_leaving: It is being unloaded.
    """

    model: str
    size_bytes: int
    last_used_ns: int = 0
    is_pinned: bool = False
    is_in_use: bool = False
    is_leaving: bool = False

    @property
    def may_go(self) -> bool:
        """Whether it can be evicted."""
        return not (self.is_pinned or self.is_in_use or self.is_leaving)


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A model that somebody waits for and that takes no memory yet.

    Attributes:
        model: Its name.
        size_bytes: What it is expected to take.
        since_ns: Monotonic; when it was first asked for.
    """

    model: str
    size_bytes: int
    since_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now.

    Attributes:
        load: Models to load, the first that was asked for first.
        evict: Models to unload.
        refuse: Models that cannot be loaded, and why.
    """

    load: tuple[str, ...] = ()
    evict: tuple[str, ...] = ()
    refuse: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """How much all models together may take.

    Attributes:
        most_bytes: The budget; 0: there is none.
        patience_ns: How long a model waits for others to become idle.
    """

    most_bytes: int
    patience_ns: int

    def decide(
        self, residents: Sequence[Resident], wants: Iterable[Want], now_ns: int
    ) -> Decision:
        """Return what to do about everybody who wants a model.

        Args:
            residents: All models that take memory, each once.
            wants: Models of which none is resident, each once.
            now_ns: Monotonic time.
        """
        asked = sorted(wants, key=lambda want: (want.since_ns, want.model))
        if not self.most_bytes:
            return Decision(load=tuple(want.model for want in asked))
        room = _Room(self.most_bytes, residents)
        room.make(0)
        load: list[str] = []
        refuse: dict[str, str] = {}
        for want in asked:
            if want.size_bytes > room.ceiling_bytes:
                refuse[want.model] = self._too_large(want, room.pinned_bytes)
            elif room.has(want.size_bytes):
                load.append(want.model)
                room.taken_bytes += want.size_bytes
            elif room.make(want.size_bytes):
                break  # once they are gone
            elif now_ns - want.since_ns >= self.patience_ns:
                refuse[want.model] = self._no_room(want)
            else:
                break
        return Decision(load=tuple(load), evict=tuple(room.evicted), refuse=refuse)

    def _too_large(self, want: Want, pinned_bytes: int) -> str:
        pinned = f", of which pinned models take {pinned_bytes}" if pinned_bytes else ""
        return (
            f"model '{want.model}' takes {want.size_bytes} bytes, and the memory budget"
            f" is {self.most_bytes} bytes{pinned}"
        )

    def _no_room(self, want: Want) -> str:
        return (
            f"model '{want.model}' takes {want.size_bytes} bytes, and models in use"
            f" leave no room for it in the memory budget of {self.most_bytes} bytes"
        )


class _Room:
    """What is free, and what would be."""

    def __init__(self, most_bytes: int, residents: Sequence[Resident]) -> None:
        self._most_bytes = most_bytes
        # Leaving ones count until they are gone.
        self.taken_bytes = sum(each.size_bytes for each in residents)
        self._leaving_bytes = sum(e.size_bytes for e in residents if e.is_leaving)
        self._idle = sorted(
            (each for each in residents if each.may_go),
            key=lambda each: (each.last_used_ns, each.model),
        )
        self.pinned_bytes = sum(e.size_bytes for e in residents if e.is_pinned)
        self.evicted: list[str] = []

    @property
    def ceiling_bytes(self) -> int:
        """What there would be with nothing but pinned models."""
        return self._most_bytes - self.pinned_bytes

    def has(self, size_bytes: int) -> bool:
        """Whether so much is free now."""
        return self.taken_bytes + size_bytes <= self._most_bytes

    def make(self, size_bytes: int) -> bool:
        """Have idle models go until so much will be free; False if it cannot be.

        Nobody goes in vain, unless the budget is exceeded as it is.
        """
        excess = self.taken_bytes - self._leaving_bytes + size_bytes - self._most_bytes
        going: list[Resident] = []
        freed = 0
        for each in self._idle:
            if freed >= excess:
                break
            going.append(each)
            freed += each.size_bytes
        if freed < excess and size_bytes:
            return False
        for each in going:
            self._idle.remove(each)
            self._leaving_bytes += each.size_bytes
            self.evicted.append(each.model)
        return freed >= excess
