"""A gRPC server behind the gateway that tells how requests arrived.

A process of its own, so that the tests, which may share theirs with tritonclient,
import no protos. Usage: ``python rest_puppet.py UNIX_SOCKET``; it writes "ready".
"""

import json
import signal
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent import futures
from typing import Any, Final

import grpc
from google.api.httpbody_pb2 import HttpBody
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from protos import rest_pb2

Context = Any
PIECE_BYTES: Final = 1 << 20
LIMITS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


def document(value: object) -> HttpBody:
    return HttpBody(content_type="application/json", data=json.dumps(value).encode())


def headers_of(context: Context) -> dict[str, str]:
    return {key: str(value) for key, value in context.invocation_metadata()}


class RestService:
    """Tells what arrived; the model's name says how to behave."""

    def __init__(self) -> None:
        self.uploads: list[dict[str, object]] = []

    def ServerLive(self, request: rest_pb2.RestRequest, context: Context) -> HttpBody:
        del request, context
        return HttpBody(content_type="text/plain")

    def ModelMetadata(
        self, request: rest_pb2.RestRequest, context: Context
    ) -> HttpBody:
        return document(
            {
                "model": request.model_name,
                "version": request.model_version,
                "headers": headers_of(context),
            }
        )

    def ModelStatistics(
        self, request: rest_pb2.RestRequest, context: Context
    ) -> HttpBody:
        del context
        return document({"statistics_of": request.model_name})

    def ModelConfig(self, request: rest_pb2.RestRequest, context: Context) -> HttpBody:
        code, _, length = request.model_name.partition("-")
        details = "x" * int(length) if length else 'Ärger\n"mit" \\ allem'
        context.abort(grpc.StatusCode[code], details)

    def RepositoryIndex(
        self, request: rest_pb2.RestRequest, context: Context
    ) -> HttpBody:
        del context
        return document(
            {
                "repository": request.repository_name,
                "body": request.body.data.decode(),
                "type": request.body.content_type,
            }
        )

    def ModelGenerate(
        self, request: rest_pb2.RestRequest, context: Context
    ) -> HttpBody:
        del context
        return document({"size": len(request.body.data)})

    def LogSettingsGet(
        self, request: rest_pb2.RestRequest, context: Context
    ) -> HttpBody:
        del request, context
        return document(self.uploads)

    def ModelInfer(
        self, requests: Iterator[rest_pb2.RestRequest], context: Context
    ) -> Iterator[HttpBody]:
        headers = headers_of(context)
        names, pieces = [], []
        try:
            for request in requests:
                names.append((request.model_name, request.model_version))
                pieces.append(request.body.data)
        finally:
            body = b"".join(pieces)
            upload: dict[str, object] = {
                "first": names[0] if names else None,
                "size": len(body),
                "crc": zlib.crc32(body),
                "promised": headers.get("x-content-length"),
            }
            self.uploads.append(upload)
        if names[0][0] == "unavailable":
            context.abort(grpc.StatusCode.UNAVAILABLE, "later")
        if names[0][0] == "refuses":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
        if names[0][0] != "echo":
            yield document(upload)
            return
        key = "inference-header-content-length"
        context.send_initial_metadata(((key, headers.get(key, "none")),))
        for start in range(0, max(len(body), 1), PIECE_BYTES):
            yield HttpBody(
                content_type="application/octet-stream",
                data=body[start : start + PIECE_BYTES],
            )

    def ModelGenerateStream(
        self, request: rest_pb2.RestRequest, context: Context
    ) -> Iterator[HttpBody]:
        del context
        for i in range(3):
            yield HttpBody(
                content_type="text/event-stream; charset=utf-8",
                data=b"data: %d %s\n\n" % (i, request.body.data),
            )


def rest_services() -> "list[grpc.GenericRpcHandler[Any, Any]]":
    """Return RestService and MetricsService, as far as the tests ask for them."""
    service = RestService()
    read, write = rest_pb2.RestRequest.FromString, HttpBody.SerializeToString
    unary = (
        *(service.ServerLive, service.ModelMetadata, service.ModelStatistics),
        *(service.ModelConfig, service.RepositoryIndex, service.ModelGenerate),
        service.LogSettingsGet,
    )
    methods = {
        method.__name__: grpc.unary_unary_rpc_method_handler(method, read, write)
        for method in unary
    }
    methods["ModelGenerateStream"] = grpc.unary_stream_rpc_method_handler(
        service.ModelGenerateStream, read, write
    )
    methods["ModelInfer"] = grpc.stream_stream_rpc_method_handler(
        service.ModelInfer, read, write
    )
    page = HttpBody(content_type="text/plain; charset=utf-8", data=b"up 1\n")
    return [
        grpc.method_handlers_generic_handler("nereid.rest.RestService", methods),
        bytes_service(
            "nereid.rest.MetricsService", "Metrics", page.SerializeToString()
        ),
    ]


def bytes_service(
    name: str, method: str, answer: bytes
) -> "grpc.GenericRpcHandler[Any, Any]":
    """Return a service with one method, which answers always the same."""
    handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)
    return grpc.method_handlers_generic_handler(name, {method: handler})


def main() -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    server = grpc.server(futures.ThreadPoolExecutor(16), options=LIMITS)
    healths = health.HealthServicer()
    healths.set("nereid.router", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(healths, server)
    services = (
        *rest_services(),
        bytes_service("inference.GRPCInferenceService", "ServerLive", b"\x08\x01"),
        # What only our own processes may reach.
        bytes_service("nereid.worker.WorkerDispatch", "Serve", b""),
    )
    server.add_generic_rpc_handlers(services)
    server.add_insecure_port(f"unix:{sys.argv[1]}")
    server.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    stopped.wait()
    server.stop(0)


if __name__ == "__main__":
    main()
