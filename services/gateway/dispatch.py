"""What each listener does with a request, first match first.

gRPC clients reach the public services only: the router's own address, which Envoy
may be given, also serves what workers and control use among themselves.
"""

from typing import Final

from protos import rest_pb2
from services.core.restrictions import GATEWAY_HEADER
from services.gateway.envoy_json import TYPE_PREFIX, Json
from services.gateway.listeners import NEVER
from services.gateway.routes import PathPattern, either, path_patterns

REST: Final = rest_pb2.DESCRIPTOR.services_by_name["RestService"]
METRICS: Final = rest_pb2.DESCRIPTOR.services_by_name["MetricsService"]
TRANSCODER: Final = "envoy.filters.http.grpc_json_transcoder"
HEADER_MUTATION: Final = "envoy.filters.http.header_mutation"
PUBLIC_SERVICES: Final = (
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)

_GRPC_HEADERS: Final = ("grpc-status", "grpc-message", "grpc-accept-encoding")
_WITHOUT_TRANSCODER: Final[Json] = {
    TRANSCODER: {
        "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig",
        "disabled": True,
    }
}


def http_routes(streams: Json = None) -> list[Json]:
    """Return the routes of the port that serves REST, gRPC and gRPC-Web.

    Args:
        streams: The transcoder's settings for methods with streamed bodies; None
            leaves them those of the others.
    """
    patterns = path_patterns(REST)
    routes: list[Json] = [_grpc_route(service) for service in PUBLIC_SERVICES]
    routes.append({"match": {"prefix": "/", "grpc": {}}, **_refusal(404)})
    streamed = path_patterns(REST, is_streamed_only=True)
    routes.append(_rest_route(streamed, "POST", {TRANSCODER: streams}))
    routes += [_rest_route(patterns, verb, {}) for verb in ("GET", "POST")]
    routes.append(
        {"match": {"safe_regex": {"regex": either(patterns)}}, **_refusal(405)}
    )
    routes.append({"match": {"prefix": "/"}, **_refusal(404)})
    return routes


def _rest_route(
    patterns: tuple[PathPattern, ...], verb: str, filters: dict[str, Json]
) -> Json:
    given = {name: settings for name, settings in filters.items() if settings}
    return {
        "match": {
            "safe_regex": {"regex": either(patterns, verb)},
            "headers": [_verb_is(verb)],
        },
        "route": _to_router(),
        "request_headers_to_remove": ["grpc-encoding", "grpc-accept-encoding"],
        "typed_per_filter_config": {**_without_grpc_headers(), **given},
    }


def _grpc_route(service: str) -> Json:
    """Return the route of gRPC and gRPC-Web, whose types are application/grpc*."""
    header: Json = {
        "name": "content-type",
        "string_match": {"prefix": "application/grpc"},
    }
    match: Json = {"prefix": f"/{service}/", "headers": [header]}
    mark: Json = {
        "header": {"key": GATEWAY_HEADER, "value": "1"},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
    return {"match": match, "route": _to_router(), "request_headers_to_add": [mark]}


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
        "typed_per_filter_config": _WITHOUT_TRANSCODER,
    }


def _without_grpc_headers() -> dict[str, Json]:
    return {
        HEADER_MUTATION: {
            "@type": TYPE_PREFIX
            + "filters.http.header_mutation.v3.HeaderMutationPerRoute",
            "mutations": {
                "response_mutations": [{"remove": name} for name in _GRPC_HEADERS]
            },
        }
    }


def metrics_routes() -> list[Json]:
    """Return the routes of the metrics port; its root is an empty page."""
    pattern = either(path_patterns(METRICS))
    page: Json = {
        "match": {"safe_regex": {"regex": pattern}, "headers": [_verb_is("GET")]},
        "route": {"cluster": "control", "timeout": "30s"},
        "typed_per_filter_config": _without_grpc_headers(),
    }
    root: Json = {
        "match": {"path": "/", "headers": [_verb_is("GET")]},
        "direct_response": {"status": 200},
        "typed_per_filter_config": _WITHOUT_TRANSCODER,
    }
    return [
        page,
        root,
        {"match": {"safe_regex": {"regex": f"/|{pattern}"}}, **_refusal(405)},
        {"match": {"prefix": "/"}, **_refusal(404)},
    ]
