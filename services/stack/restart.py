"""How soon a process that ended is started again. Pure."""

from typing import Final

FIRST_DELAY_NS: Final = 200_000_000
LONGEST_DELAY_NS: Final = 10_000_000_000
# A process that lived so long is sound: its next end counts as its first.
STEADY_NS: Final = 60_000_000_000


def next_delay_ns(previous_delay_ns: int, *, lived_ns: int) -> int:
    """Return how long to wait before the next start.

    Args:
        previous_delay_ns: What this returned at the process's last end; 0 at first.
        lived_ns: How long the process had run when it ended now.
    """
    if previous_delay_ns == 0 or lived_ns >= STEADY_NS:
        return FIRST_DELAY_NS
    return min(2 * previous_delay_ns, LONGEST_DELAY_NS)
