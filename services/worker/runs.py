"""What answers a batch: a function of its bytes, and what else it needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from services.worker.outlet import Outlet
from services.worker.sequence_states import SequenceStates

Run: TypeAlias = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class StreamedRun:
    """Answers a batch whose replies may also go through its outlet, then or later."""

    run: Callable[[bytes, Outlet], bytes]


@dataclass(frozen=True, slots=True)
class StatefulRun:
    """Answers a batch whose sequences have their states where its stream has them.

    Attributes:
        run: Does it.
        tells_states: Whether the router is sent the states before the answers.
    """

    run: Callable[[bytes, SequenceStates], bytes]
    tells_states: bool = False


AnyRun: TypeAlias = Run | StreamedRun | StatefulRun
