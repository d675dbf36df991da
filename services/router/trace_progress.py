"""How far sampling has come, told to control from time to time."""

import time
from collections.abc import Callable
from typing import Final

from protos import control_pb2
from services.router.trace_sampler import TraceSampler

TELL_EVERY_NS: Final = 200_000_000

CallAt = Callable[[int, Callable[[], None]], object]
"""Calls back at a monotonic time, in nanoseconds."""


class TraceProgress:
    """Tells control while one of several requests is sampled."""

    def __init__(
        self,
        sampler: TraceSampler,
        send: Callable[[control_pb2.RouterReport], object],
        call_at: CallAt,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Tell by ``send`` how far ``sampler`` has come; ``call_at`` keeps time."""
        self._sampler = sampler
        self._send = send
        self._call_at = call_at
        self._now_ns = now_ns
        self._is_due = False

    def settings_came(self) -> None:
        """Begin to tell, if there is anything to tell now."""
        if self._sampler.is_shared and not self._is_due:
            self._is_due = True
            self._call_at(self._now_ns() + TELL_EVERY_NS, self._tell)

    def obey(self, move: control_pb2.TraceMove) -> None:
        """Count what control has moved here, or away."""
        self._sampler.move(move.session, move.by)

    def _tell(self) -> None:
        self._is_due = False
        news = self._sampler.progress()
        if news:
            report = control_pb2.TraceReport()
            for each in news:
                report.progress.add(
                    session=each.session, counted=each.counted, moves=each.moves
                )
            self._send(control_pb2.RouterReport(trace_report=report))
        self.settings_came()
