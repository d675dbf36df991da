"""What answers a batch: a function of its bytes, and what else it needs."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from services.worker.outlet import Outlet
from services.worker.sequence_states import SequenceStates

# What a batch comes with: its outlet, or its sequences' states.
_Companion = TypeVar("_Companion")

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


def guarded(run: AnyRun, guard: Callable[[], AbstractContextManager[object]]) -> AnyRun:
    """Return ``run`` of the same kind, each batch inside what ``guard`` returns."""
    if isinstance(run, StreamedRun):
        return StreamedRun(_inside(run.run, guard))
    if isinstance(run, StatefulRun):
        return StatefulRun(_inside(run.run, guard), run.tells_states)
    plain = run

    def run_plain(message: bytes) -> bytes:
        with guard():
            return plain(message)

    return run_plain


def _inside(
    run: Callable[[bytes, _Companion], bytes],
    guard: Callable[[], AbstractContextManager[object]],
) -> Callable[[bytes, _Companion], bytes]:
    def run_inside(message: bytes, companion: _Companion) -> bytes:
        with guard():
            return run(message, companion)

    return run_inside
