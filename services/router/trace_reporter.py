"""Traces and their settings on the stream between router and control."""

import time
from collections.abc import Callable

from protos import control_pb2
from services.router.trace_sampler import TraceScope, TraceSettings
from services.router.traced_request import RequestTrace


class TraceReporter:
    """Sends traces to control; what no stream takes is lost."""

    def __init__(self, send: Callable[[control_pb2.RouterReport], object]) -> None:
        """Send by ``send``."""
        self._send = send

    def sampled(self, session: int) -> None:
        """Say that a request is going to be traced."""
        sampled = control_pb2.TraceSampled(session=session)
        self._send(control_pb2.RouterReport(trace_sampled=sampled))

    def ended(self, scope: TraceScope, trace: RequestTrace) -> None:
        """Hand over a finished trace."""
        message = _request_to_proto(trace, has_times=scope.timestamps)
        message.wall_clock_offset_ns = time.time_ns() - time.monotonic_ns()
        ended = control_pb2.TraceEnded(session=scope.session, request=message)
        self._send(control_pb2.RouterReport(trace_ended=ended))

    def applied(self, revision: int) -> None:
        """Say that the settings of ``revision`` are in force."""
        applied = control_pb2.TraceSettingsApplied(revision=revision)
        self._send(control_pb2.RouterReport(trace_settings_applied=applied))


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
            for step in trace.steps.values()
        ],
    )
