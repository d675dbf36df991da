"""Sends spans to an OpenTelemetry collector; the only module that imports the SDK.

The SDK is an extra of the package, ``otel``: it is imported when the mode is used.
"""

import importlib.util
import threading
from typing import Any, Final

from services.control.otel_options import OtelOptions
from services.control.trace_spans import SpanRecord

# A collector that does not answer must not hold up the end of the stack.
_EXPORT_TIMEOUT_S: Final = 2.0
_LONGEST_GOODBYE_S: Final = 3.0
_INSTRUMENTATION: Final = "nereid"


def is_installed() -> bool:
    """Tell whether the SDK and its OTLP exporter can be imported."""
    names = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
    try:
        return all(importlib.util.find_spec(name) is not None for name in names)
    except ModuleNotFoundError:
        return False


class OtelExporter:
    """Turns span records into the SDK's spans, and has them sent in batches."""

    def __init__(self, options: OtelOptions) -> None:
        """Begin to send; threads of the SDK do."""
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )

        self._api = trace
        self._propagator = TraceContextTextMapPropagator()
        # What is recorded was decided when the request came.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create(dict(options.resource)),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(endpoint=options.url, timeout=_EXPORT_TIMEOUT_S),
                max_queue_size=options.max_queue_size,
                schedule_delay_millis=options.schedule_delay_ms,
                max_export_batch_size=options.max_export_batch_size,
            )
        )
        self._tracer = self._provider.get_tracer(_INSTRUMENTATION)

    def export(self, root: SpanRecord, traceparent: str) -> None:
        """Send a span and all within it; never blocks.

        Args:
            root: Of the client's request.
            traceparent: Its W3C trace context; empty if it sent none.
        """
        parent = self._propagator.extract({"traceparent": traceparent})
        self._export(root, parent)

    def close(self) -> None:
        """Send what waits, as far as there is a collector that takes it."""
        goodbye = threading.Thread(target=self._provider.shutdown, daemon=True)
        goodbye.start()
        goodbye.join(_LONGEST_GOODBYE_S)

    def _export(self, record: SpanRecord, parent: Any) -> None:  # noqa: ANN401 - the SDK's
        span = self._tracer.start_span(
            record.name,
            context=parent,
            kind=self._api.SpanKind.SERVER,
            attributes=dict(record.attributes),
            start_time=record.start_ns,
        )
        for name, at_ns in record.events:
            span.add_event(name, timestamp=at_ns)
        if record.error:
            span.set_status(self._api.Status(self._api.StatusCode.ERROR, record.error))
        within = self._api.set_span_in_context(span, parent)
        for child in record.children:
            self._export(child, within)
        span.end(end_time=record.end_ns)
