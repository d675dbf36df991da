"""An OpenTelemetry collector in the test's hands: OTLP over HTTP, kept in memory.

Imports neither protos nor services, so that tests with tritonclient may use it.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)


class Collector:
    """What has arrived.

    Attributes:
        url: Where spans are to be sent.
        resources: Attributes of the latest resource.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1/traces"
        self.resources: dict[str, str] = {}
        self._spans: list[Any] = []
        self._news = threading.Condition()

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._news:
            for resource in request.resource_spans:
                self.resources = {
                    each.key: each.value.string_value
                    for each in resource.resource.attributes
                }
                for scope in resource.scope_spans:
                    self._spans.extend(scope.spans)
            self._news.notify_all()

    def spans(self, count: int) -> list[Any]:
        """Return all spans, once there are so many."""
        return self.when(lambda spans: len(spans) >= count)

    def when(self, is_enough: Callable[[list[Any]], bool]) -> list[Any]:
        with self._news:
            assert self._news.wait_for(lambda: is_enough(self._spans), 20), self._spans
            return list(self._spans)


@contextlib.contextmanager
def running_collector() -> Iterator[Collector]:
    """Listen on a port of 127.0.0.1 for as long as the block runs."""
    collectors: list[Collector] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") is None:
                collectors[0].take(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collectors.append(Collector(server.server_address[1]))
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        try:
            yield collectors[0]
        finally:
            server.shutdown()
            serving.join()


def attributes_of(span: Any) -> dict[str, object]:  # noqa: ANN401 - its type is private
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value"))
        for each in span.attributes
    }
