"""The processes behind the gateway."""

import ipaddress
from collections.abc import Sequence

from services.gateway.envoy_json import HTTP2_WINDOWS, TYPE_PREFIX, Json


def cluster(name: str, targets: Sequence[str]) -> Json:
    """Return the cluster of processes that speak gRPC at ``targets``."""
    protocol: Json = {
        "@type": TYPE_PREFIX + "upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {
            "http2_protocol_options": {
                **HTTP2_WINDOWS,
                "connection_keepalive": {"interval": "30s", "timeout": "5s"},
            }
        },
    }
    endpoints: list[Json] = [{"endpoint": {"address": _address(t)}} for t in targets]
    return {
        "name": name,
        "type": "STATIC" if all(map(_is_literal, targets)) else "STRICT_DNS",
        "connect_timeout": "2s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": protocol
        },
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "2s",
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "grpc_health_check": {},
            }
        ],
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": 1024,
                    "max_requests": 100_000,
                    "max_pending_requests": 100_000,
                    "max_retries": 64,
                }
            ]
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": endpoints}],
        },
    }


def _address(target: str) -> Json:
    if target.startswith("unix:"):
        return {"pipe": {"path": target.removeprefix("unix:")}}
    host, _, port = target.rpartition(":")
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}


def _is_literal(target: str) -> bool:
    if target.startswith("unix:"):
        return True
    try:
        ipaddress.ip_address(target.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    return True
