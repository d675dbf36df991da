"""Envoy's configuration, as a pure function of where everything listens.

Facts that shaped it (each was measured against the real Triton's HTTP answers):

- ``convert_grpc_status`` turns a gRPC error into JSON with the right status, through
  the descriptor of ``services.gateway.descriptor``;
- every field of RestRequest is an ignored query parameter: else
  ``?model_name=evil`` overrides the path;
- Envoy drops Content-Length on the way up; a copy in ``x-content-length`` lets the
  router tell a finished upload from a client that left;
- grpc-status and its like are removed from REST answers route by route: removed
  everywhere, gRPC clients on the same port would miss them;
- the default route timeout of 15 s and the idle timeout are off: inference may take
  long, and clients have deadlines of their own.
"""

from dataclasses import dataclass
from typing import Final

from google.protobuf.descriptor import Descriptor

from protos import rest_pb2
from services.core.health_names import ROUTER_PROCESS
from services.gateway.clusters import cluster
from services.gateway.dispatch import (
    METRICS,
    REST,
    TRANSCODER,
    http_routes,
    metrics_routes,
)
from services.gateway.envoy_json import (
    MAX_CONNECTIONS,
    MIB,
    TYPE_PREFIX,
    Json,
    http_filter,
)
from services.gateway.listeners import ListenerOptions, listener

# As Triton's --http-max-input-size.
DEFAULT_BODY_LIMIT_BYTES: Final = 64 * MIB
_PATH_REGEX_PROGRAM_SIZE: Final = 5000
# To Envoy the largest body is also how much of one it holds before it stops to read.
# Streamed bodies may be of any size, so that there it is the latter only.
_STREAM_BUFFER_BYTES: Final = 16 << 20
_STREAM_BUFFERS: Final[dict[str, Json]] = {
    "max_request_body_size": _STREAM_BUFFER_BYTES,
    "max_response_body_size": _STREAM_BUFFER_BYTES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Where the gateway listens and whom it reaches.

    Attributes:
        http_address: Of REST, gRPC and gRPC-Web.
        http_port: Likewise; 0 leaves that door out.
        metrics_address: Of the Prometheus page.
        metrics_port: Likewise; 0 leaves that door out.
        router_targets: ``unix:PATH`` or ``HOST:PORT``, all alike; a name stands
            for all addresses it resolves to.
        control_target: Who serves the Prometheus page.
        descriptor_path: Where the transcoder's descriptor set lies.
        admin_socket: Path of Envoy's own interface; empty leaves it out.
        body_limit_bytes: The largest body of any method but infer, whose bodies
            are streamed, and limited by the router.
        listeners: What both doors have in common.
    """

    http_address: str = "0.0.0.0"  # noqa: S104 - a server's front door
    http_port: int = 8000
    metrics_address: str = "0.0.0.0"  # noqa: S104
    metrics_port: int = 8002
    router_targets: tuple[str, ...]
    control_target: str
    descriptor_path: str
    admin_socket: str = ""
    body_limit_bytes: int = DEFAULT_BODY_LIMIT_BYTES
    listeners: ListenerOptions = ListenerOptions()  # noqa: RUF009 - frozen


def envoy_config(settings: GatewaySettings) -> dict[str, Json]:
    """Return Envoy's bootstrap configuration (JSON is YAML to Envoy).

    Raises:
        ConfigError: a target is no address.
    """
    listeners = []
    if settings.http_port:
        listeners.append(_http_listener(settings))
    if settings.metrics_port:
        listeners.append(_metrics_listener(settings))
    admin: dict[str, Json] = {}
    if settings.admin_socket:
        admin = {
            "admin": {
                "address": {"pipe": {"path": settings.admin_socket, "mode": 0o600}}
            }
        }
    return {
        "node": {"id": "nereid-envoy", "cluster": "nereid"},
        **admin,
        "static_resources": {
            "listeners": listeners,
            "clusters": [
                cluster("router", settings.router_targets, ROUTER_PROCESS),
                cluster("control", (settings.control_target,)),
            ],
        },
        "overload_manager": _limit_of_connections(),
        "layered_runtime": {
            "layers": [
                {
                    "name": "static",
                    "static_layer": {
                        "re2.max_program_size.error_level": _PATH_REGEX_PROGRAM_SIZE,
                        "re2.max_program_size.warn_level": _PATH_REGEX_PROGRAM_SIZE,
                    },
                }
            ]
        },
    }


def _http_listener(settings: GatewaySettings) -> Json:
    request = rest_pb2.RestRequest.DESCRIPTOR
    transcoding = _transcoding(REST.full_name, settings, request)
    filters: list[Json] = [
        http_filter("grpc_web", "grpc_web.v3.GrpcWeb"),
        # Before the transcoder, so that on the way back it comes after it.
        http_filter(
            "header_mutation",
            "header_mutation.v3.HeaderMutation",
            mutations={"request_mutations": _promised_length()},
        ),
        {"name": TRANSCODER, "typed_config": transcoding},
        http_filter("router", "router.v3.Router", suppress_envoy_headers=True),
    ]
    return listener(
        "http",
        settings.http_address,
        settings.http_port,
        routes=http_routes({**transcoding, **_STREAM_BUFFERS}),
        filters=filters,
        options=settings.listeners,
    )


def _promised_length() -> list[Json]:
    copied: Json = {"key": "x-content-length", "value": "%REQ(content-length)%"}
    action: Json = {"header": copied, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    return [{"remove": "x-content-length"}, {"append": action}]


def _metrics_listener(settings: GatewaySettings) -> Json:
    request = rest_pb2.MetricsRequest.DESCRIPTOR
    transcoding = _transcoding(METRICS.full_name, settings, request)
    filters: list[Json] = [
        http_filter("header_mutation", "header_mutation.v3.HeaderMutation"),
        {"name": TRANSCODER, "typed_config": transcoding},
        http_filter("router", "router.v3.Router", suppress_envoy_headers=True),
    ]
    return listener(
        "metrics",
        settings.metrics_address,
        settings.metrics_port,
        routes=metrics_routes(),
        filters=filters,
        options=settings.listeners,
    )


def _limit_of_connections() -> Json:
    limit: Json = {
        "name": "envoy.resource_monitors.global_downstream_max_connections",
        "typed_config": {
            "@type": TYPE_PREFIX + "resource_monitors.downstream_connections.v3"
            ".DownstreamConnectionsConfig",
            "max_active_downstream_connections": MAX_CONNECTIONS,
        },
    }
    return {"resource_monitors": [limit]}


def _transcoding(
    service: str, settings: GatewaySettings, request: Descriptor
) -> dict[str, Json]:
    fields: list[Json] = [field.name for field in request.fields]
    body: list[Json] = (
        [*("body.data", "body.content_type", "body.extensions")] if fields else []
    )
    return {
        "@type": TYPE_PREFIX
        + "filters.http.grpc_json_transcoder.v3.GrpcJsonTranscoder",
        "proto_descriptor": settings.descriptor_path,
        "services": [service],
        "match_incoming_request_route": True,
        "ignore_unknown_query_parameters": True,
        "ignored_query_parameters": [*fields, *body],
        "convert_grpc_status": True,
        "url_unescape_spec": "ALL_CHARACTERS_EXCEPT_RESERVED",
        "max_request_body_size": settings.body_limit_bytes,
        "max_response_body_size": settings.body_limit_bytes,
    }
