"""Traces and their settings on the stream between router and control."""

import time
from collections.abc import Callable
from typing import Final

from protos import control_pb2
from services.router.request_trace import RequestTrace
from services.router.trace_sampler import TraceScope, TraceSettings

# The stream takes one message each time that the loop looks at it: every 20 ms.
REPORT_AFTER_NS: Final = 20_000_000

CallAt = Callable[[int, Callable[[], None]], object]
"""Calls back at a monotonic time, in nanoseconds."""


class TraceReporter:
    """Sends traces to control, together; what no stream takes is lost."""

    def __init__(
        self, send: Callable[[control_pb2.RouterReport], object], call_at: CallAt
    ) -> None:
        """Send by ``send``, at times that ``call_at`` keeps."""
        self._send = send
        self._call_at = call_at
        self._report = control_pb2.TraceReport()
        self._is_due = False

    def sampled(self, session: int) -> None:
        """Say that a request is going to be traced."""
        self._report.sampled.append(session)
        self._send_soon()

    def ended(self, scope: TraceScope, trace: RequestTrace) -> None:
        """Hand over a finished trace."""
        message = _request_to_proto(trace, has_times=scope.timestamps)
        message.wall_clock_offset_ns = time.time_ns() - time.monotonic_ns()
        self._report.ended.add(session=scope.session, request=message)
        self._send_soon()

    def applied(self, revision: int) -> None:
        """Say that settings are in force, after all that happened before."""
        self.flush()
        applied = control_pb2.TraceSettingsApplied(revision=revision)
        self._send(control_pb2.RouterReport(trace_settings_applied=applied))

    def flush(self) -> None:
        """Send what has not been sent."""
        self._is_due = False
        report, self._report = self._report, control_pb2.TraceReport()
        if report.sampled or report.ended:
            self._send(control_pb2.RouterReport(trace_report=report))

    def _send_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_at(time.monotonic_ns() + REPORT_AFTER_NS, self.flush)


def settings_from_proto(message: control_pb2.TraceSettings) -> TraceSettings:
    """Return what control says of which requests to trace."""
    return TraceSettings(
        overall=_scope_from_proto(message.overall),
        models={n: _scope_from_proto(scope) for n, scope in message.models.items()},
        follows_callers=message.open_telemetry,
    )


def _scope_from_proto(message: control_pb2.TraceScope) -> TraceScope:
    return TraceScope(
        session=message.session,
        rate=message.rate,
        count=message.count,
        timestamps=message.timestamps,
        tensors=message.tensors,
    )


def _request_to_proto(
    trace: RequestTrace, *, has_times: bool
) -> control_pb2.TracedRequest:
    times = trace.timestamps if has_times else ()
    return control_pb2.TracedRequest(
        model=trace.model,
        version=trace.version,
        request_id=trace.request_id,
        timestamps=[control_pb2.TraceTimestamp(name=n, ns=ns) for n, ns in times],
        request=trace.request,
        response=trace.response,
        traceparent=trace.traceparent,
        error=trace.error,
        children=[
            _request_to_proto(step, has_times=has_times)
            for step in (*trace.steps.values(), *trace.nested)
        ],
    )
