"""Brings sampling, traced requests and control together."""

from protos import control_pb2
from services.core.completion_queue import Reactor
from services.router.control_client import ControlClient
from services.router.inference import Inference
from services.router.trace_arrival import arrival_of
from services.router.trace_progress import TraceProgress
from services.router.trace_reporter import TraceReporter, settings_from_proto
from services.router.tracer import Tracer


def connect_tracing(
    control: ControlClient, inference: Inference, reactor: Reactor, endpoint: str
) -> TraceReporter:
    """Trace the requests of ``inference`` as ``control`` says, and report to it.

    Args:
        control: Says, and is told.
        inference: Of this router.
        reactor: Its loop.
        endpoint: Where workers reach it.

    Returns:
        Who reports: to be flushed before the router ends.
    """
    reporter = TraceReporter(control.send, reactor.call_roughly_at)
    tracer = Tracer(reporter, arrival_of, endpoint=endpoint)
    progress = TraceProgress(tracer.sampler, control.send, reactor.call_roughly_at)

    def obey(update: control_pb2.RouterUpdate) -> None:
        tracer.follow(settings_from_proto(update.trace_settings))
        inference.trace_by(tracer)
        reporter.applied(update.trace_settings.revision)
        progress.settings_came()

    control.on_update("trace_settings", obey)
    control.on_update("trace_move", lambda update: progress.obey(update.trace_move))
    return reporter
