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
from services.gateway.clusters import cluster
from services.gateway.envoy_json import TYPE_PREFIX, Json, http_filter
from services.gateway.listeners import NEVER, listener
from services.gateway.routes import either, path_patterns

_TRANSCODER: Final = "envoy.filters.http.grpc_json_transcoder"
_HEADER_MUTATION: Final = "envoy.filters.http.header_mutation"
_MUTATION_PER_ROUTE: Final = "header_mutation.v3.HeaderMutationPerRoute"
_REST: Final = rest_pb2.DESCRIPTOR.services_by_name["RestService"]
_METRICS: Final = rest_pb2.DESCRIPTOR.services_by_name["MetricsService"]
_GRPC_HEADERS: Final = ("grpc-status", "grpc-message", "grpc-accept-encoding")
_PATH_REGEX_PROGRAM_SIZE: Final = 5000


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
    """

    http_address: str = "0.0.0.0"  # noqa: S104 - a server's front door
    http_port: int = 8000
    metrics_address: str = "0.0.0.0"  # noqa: S104
    metrics_port: int = 8002
    router_targets: tuple[str, ...]
    control_target: str
    descriptor_path: str
    admin_socket: str = ""


def envoy_config(settings: GatewaySettings) -> dict[str, Json]:
    """Return Envoy's bootstrap configuration (JSON is YAML to Envoy)."""
    listeners = []
    if settings.http_port:
        listeners.append(_http_listener(settings))
    if settings.metrics_port:
        listeners.append(_metrics_listener(settings))
    admin: dict[str, Json] = {}
    if settings.admin_socket:
        admin = {"admin": {"address": {"pipe": {"path": settings.admin_socket}}}}
    return {
        "node": {"id": "nereid-envoy", "cluster": "nereid"},
        **admin,
        "static_resources": {
            "listeners": listeners,
            "clusters": [
                cluster("router", settings.router_targets),
                cluster("control", (settings.control_target,)),
            ],
        },
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
    filters = [
        http_filter("grpc_web", "grpc_web.v3.GrpcWeb"),
        # Before the transcoder, so that on the way back it comes after it.
        http_filter(
            "header_mutation",
            "header_mutation.v3.HeaderMutation",
            mutations={
                "request_mutations": [
                    {
                        "append": {
                            "header": {
                                "key": "x-content-length",
                                "value": "%REQ(content-length)%",
                            },
                            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                        }
                    }
                ]
            },
        ),
        _transcoder(_REST.full_name, settings, rest_pb2.RestRequest.DESCRIPTOR),
        http_filter("router", "router.v3.Router", suppress_envoy_headers=True),
    ]
    return listener(
        "http", settings.http_address, settings.http_port, _http_routes(), filters
    )


def _metrics_listener(settings: GatewaySettings) -> Json:
    pattern = either(path_patterns(_METRICS))
    routes: list[Json] = [
        {
            "match": {"safe_regex": {"regex": pattern}, "headers": [_verb_is("GET")]},
            "route": {"cluster": "control", "timeout": "30s"},
            "typed_per_filter_config": _without_grpc_headers(),
        },
        {"match": {"safe_regex": {"regex": pattern}}, **_refusal(405)},
        {"match": {"prefix": "/"}, **_refusal(404)},
    ]
    filters = [
        http_filter("header_mutation", "header_mutation.v3.HeaderMutation"),
        _transcoder(_METRICS.full_name, settings, rest_pb2.MetricsRequest.DESCRIPTOR),
        http_filter("router", "router.v3.Router", suppress_envoy_headers=True),
    ]
    return listener(
        "metrics", settings.metrics_address, settings.metrics_port, routes, filters
    )


def _http_routes() -> list[Json]:
    patterns = path_patterns(_REST)
    routes: list[Json] = [
        {"match": {"prefix": "/", "grpc": {}}, "route": _to_router()},
        # gRPC-Web, whose content types are not gRPC's.
        {
            "match": {
                "prefix": "/inference.GRPCInferenceService/",
                "headers": [
                    {
                        "name": "content-type",
                        "string_match": {"prefix": "application/grpc-web"},
                    }
                ],
            },
            "route": _to_router(),
        },
    ]
    routes += [
        {
            "match": {
                "safe_regex": {"regex": either(patterns, verb)},
                "headers": [_verb_is(verb)],
            },
            "route": _to_router(),
            "request_headers_to_remove": ["grpc-encoding", "grpc-accept-encoding"],
            "typed_per_filter_config": _without_grpc_headers(),
        }
        for verb in ("GET", "POST")
    ]
    routes.append(
        {"match": {"safe_regex": {"regex": either(patterns)}}, **_refusal(405)}
    )
    routes.append({"match": {"prefix": "/"}, **_refusal(404)})
    return routes


def _verb_is(verb: str) -> Json:
    return {"name": ":method", "string_match": {"exact": verb}}


def _to_router() -> Json:
    """Return the route to the routers.

    Only what has certainly not begun is tried again.
    """
    return {
        "cluster": "router",
        "timeout": NEVER,
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream",
            "num_retries": 2,
            "retry_back_off": {"base_interval": "0.025s"},
        },
    }


def _refusal(status: int) -> dict[str, Json]:
    text = {404: "Not Found", 405: "Method Not Allowed"}[status]
    return {
        "direct_response": {"status": status, "body": {"inline_string": text}},
        "typed_per_filter_config": {
            _TRANSCODER: {
                "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig",
                "disabled": True,
            }
        },
    }


def _without_grpc_headers() -> Json:
    return {
        _HEADER_MUTATION: {
            "@type": TYPE_PREFIX
            + "filters.http.header_mutation.v3.HeaderMutationPerRoute",
            "mutations": {
                "response_mutations": [{"remove": name} for name in _GRPC_HEADERS]
            },
        }
    }


def _transcoder(service: str, settings: GatewaySettings, request: Descriptor) -> Json:
    fields: list[Json] = [field.name for field in request.fields]
    body: list[Json] = ["body.data", "body.content_type"] if fields else []
    return http_filter(
        "grpc_json_transcoder",
        "grpc_json_transcoder.v3.GrpcJsonTranscoder",
        proto_descriptor=settings.descriptor_path,
        services=[service],
        match_incoming_request_route=True,
        ignore_unknown_query_parameters=True,
        ignored_query_parameters=[*fields, *body],
        convert_grpc_status=True,
        url_unescape_spec="ALL_CHARACTERS_EXCEPT_RESERVED",
    )
