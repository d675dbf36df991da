"""How long the versions took to load."""

from services.control.model_registry import VersionKey
from services.core.clock import Clock

NS_PER_S = 1_000_000_000


class LoadDurations:
    """The duration of each version's last load that succeeded."""

    def __init__(self, clock: Clock) -> None:
        """Begin with none."""
        self._clock = clock
        self._began_ns: dict[VersionKey, int] = {}
        self._took_s: dict[VersionKey, float] = {}

    def begin(self, key: VersionKey) -> None:
        """Note that a worker was told to load; the first one of a load counts."""
        self._began_ns.setdefault(key, self._clock.now_ns())

    def end(self, key: VersionKey, *, is_success: bool) -> None:
        """Note that the load is over."""
        began_ns = self._began_ns.pop(key, None)
        if began_ns is not None and is_success:
            self._took_s[key] = (self._clock.now_ns() - began_ns) / NS_PER_S

    def seconds(self) -> dict[VersionKey, float]:
        """Return the durations by version."""
        return dict(self._took_s)
