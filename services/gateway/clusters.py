"""The processes behind the gateway."""

import ipaddress
from collections.abc import Sequence
from typing import Final

from services.core.errors import ConfigError
from services.gateway.envoy_json import (
    HTTP2_WINDOWS,
    MAX_CONNECTIONS,
    MAX_STREAMS,
    TYPE_PREFIX,
    Json,
)

_UNIX: Final = "unix:"
_MAX_PORT: Final = 65535


def cluster(name: str, targets: Sequence[str], health_name: str = "") -> Json:
    """Return the cluster of processes that speak gRPC at ``targets``.

    ``health_name`` is what they are asked for by ``grpc.health.v1``.

    There are no HTTP/2 pings: grpcio hangs up on a peer that pings more often than
    every five minutes. TCP's own keepalive finds a host that is gone.

    Raises:
        ConfigError: no target, one that is no address, or sockets beside names.
    """
    protocol: Json = {
        "@type": TYPE_PREFIX + "upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": HTTP2_WINDOWS},
    }
    endpoints: list[Json] = [{"endpoint": {"address": _address(t)}} for t in targets]
    needs_dns = not all(map(_is_literal, targets))
    if not targets or (needs_dns and any(t.startswith(_UNIX) for t in targets)):
        message = f"the gateway needs sockets or names of a {name}, not both"
        raise ConfigError(message)
    return {
        "name": name,
        "type": "STRICT_DNS" if needs_dns else "STATIC",
        "connect_timeout": "2s",
        "lb_policy": "LEAST_REQUEST",
        "upstream_connection_options": {
            "tcp_keepalive": {
                "keepalive_time": 30,
                "keepalive_interval": 10,
                "keepalive_probes": 3,
            }
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": protocol
        },
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": health_name},
            }
        ],
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": MAX_CONNECTIONS,
                    "max_requests": MAX_STREAMS,
                    "max_pending_requests": MAX_STREAMS,
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
    if target.startswith(_UNIX):
        path = target.removeprefix(_UNIX)
        path = path.removeprefix("//") if path.startswith("///") else path
        if path:
            return {"pipe": {"path": path}}
    host, _, port = target.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= _MAX_PORT
    if not host or "/" in host or not is_port:
        message = f"'{target}' is no address: give HOST:PORT or unix:PATH"
        raise ConfigError(message)
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}


def _is_literal(target: str) -> bool:
    if target.startswith(_UNIX):
        return True
    try:
        ipaddress.ip_address(target.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    return True
