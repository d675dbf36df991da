"""What answers a batch: a function of its bytes, and what else it needs."""

from collections.abc import Callable
from contextlib import AbstractContextManager
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


Guard: TypeAlias = Callable[[Callable[[], int]], AbstractContextManager[object]]
"""Surrounds an execution; is given what tells how long it has waited for readers, ns.
"""


def guarded(run: AnyRun, guard: Guard) -> AnyRun:
    """Return ``run`` of the same kind, each batch inside what ``guard`` returns."""
    if isinstance(run, StreamedRun):
        streamed = run.run

        def run_streamed(message: bytes, outlet: Outlet) -> bytes:
            with guard(outlet.waited_ns):
                return streamed(message, outlet)

        return StreamedRun(run_streamed)
    if isinstance(run, StatefulRun):
        stateful = run.run

        def run_stateful(message: bytes, states: SequenceStates) -> bytes:
            with guard(_never_waits):
                return stateful(message, states)

        return StatefulRun(run_stateful, run.tells_states)
    plain = run

    def run_plain(message: bytes) -> bytes:
        with guard(_never_waits):
            return plain(message)

    return run_plain


def _never_waits() -> int:
    return 0
