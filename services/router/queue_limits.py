"""What bounds the queues of a router, beyond each model's own policy. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

DELAY_SCHEDULER: Final = "TRITONSERVER_DELAY_SCHEDULER"
BACKLOG_DELAY_SCHEDULER: Final = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Bounds that hold for each model version alike.

    Attributes:
        no_worker_timeout_ns: How long requests wait while no worker serves the
            version, from its last instance on; they are then refused at once.
        max_queue_bytes: Requests that wait together; beyond it, refusal.
        hold_until: See ``BatchPolicy`` and ``SequencePolicy``; only for models
            with a dynamic batcher or sequences.
        backlog_hold_until: See ``SequencePolicy``.
    """

    no_worker_timeout_ns: int = 10_000_000_000
    max_queue_bytes: int = 1 << 30
    hold_until: int = 0
    backlog_hold_until: int = 0


def hold_until(environment: Mapping[str, str]) -> int:
    """Return how many requests Triton's test hook wants to see waiting; 0: none.

    Source: TRITONSERVER_DELAY_SCHEDULER, as Triton's own tests set it.
    """
    return _count(environment, DELAY_SCHEDULER)


def backlog_hold_until(environment: Mapping[str, str]) -> int:
    """Return how many requests it wants in the backlog of sequences besides.

    Source: TRITONSERVER_BACKLOG_DELAY_SCHEDULER, likewise.
    """
    return _count(environment, BACKLOG_DELAY_SCHEDULER)


def _count(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else 0
