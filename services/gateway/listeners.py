"""A port that speaks HTTP/1.1 and HTTP/2."""

from dataclasses import dataclass
from typing import Final

from services.gateway.envoy_json import (
    HTTP2_WINDOWS,
    MAX_STREAMS,
    MIB,
    TYPE_PREFIX,
    Json,
)

NEVER: Final = "0s"

_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"

_CONNECTION_MANAGER: Final = (
    "filters.network.http_connection_manager.v3.HttpConnectionManager"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What the gateway proves itself with, and asks of its clients.

    Attributes:
        certificate_path: A chain in PEM.
        private_key_path: Its key.
        client_ca_path: Clients must show a certificate of it; empty asks for none.
    """

    certificate_path: str
    private_key_path: str
    client_ca_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerOptions:
    """What all listeners have in common.

    Attributes:
        tls: None serves plain text.
        access_log: Path of a file, a line of JSON for each request; empty: none.
    """

    tls: Tls | None = None
    access_log: str = ""


def listener(
    name: str,
    address: str,
    port: int,
    *,
    routes: list[Json],
    filters: list[Json],
    options: ListenerOptions,
) -> Json:
    """Return a listener that answers ``routes`` through ``filters``."""
    manager: dict[str, Json] = {
        "@type": TYPE_PREFIX + _CONNECTION_MANAGER,
        "stat_prefix": name,
        "codec_type": "AUTO",
        "http_protocol_options": {
            "accept_http_10": True,
            "default_host_for_http_10": "nereid",
            "header_key_format": {"proper_case_words": {}},
        },
        "http2_protocol_options": {
            **HTTP2_WINDOWS,
            "max_concurrent_streams": MAX_STREAMS,
        },
        "stream_idle_timeout": NEVER,
        "request_timeout": NEVER,
        "request_headers_timeout": "60s",
        "max_request_headers_kb": 64,
        "server_header_transformation": "PASS_THROUGH",
        "generate_request_id": False,
        # x-envoy-* headers steer Envoy, to retries for example. They are taken from
        # whoever is outside; with this one address inside, everybody is outside.
        "use_remote_address": True,
        "internal_address_config": {
            "cidr_ranges": [{"address_prefix": "255.255.255.255", "prefix_len": 32}]
        },
        "local_reply_config": _local_replies(),
        "route_config": {
            "name": name,
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}],
        },
        "http_filters": filters,
    }
    if options.access_log:
        manager["access_log"] = [_access_log(options.access_log)]
    chain: dict[str, Json] = {
        "filters": [
            {
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": manager,
            }
        ]
    }
    if options.tls:
        chain["transport_socket"] = _tls(options.tls)
    return {
        "name": name,
        "address": {"socket_address": {"address": address, "port_value": port}},
        "per_connection_buffer_limit_bytes": MIB,
        "filter_chains": [chain],
    }


def _access_log(path: str) -> Json:
    return {
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": TYPE_PREFIX + "access_loggers.file.v3.FileAccessLog",
            "path": path,
            "log_format": {
                "json_format": {
                    "time": "%START_TIME%",
                    "method": "%REQ(X-ENVOY-ORIGINAL-METHOD?:METHOD)%",
                    "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
                    "status": "%RESPONSE_CODE%",
                    "details": "%RESPONSE_CODE_DETAILS%",
                    "grpc_status": "%GRPC_STATUS%",
                    "duration_ms": "%DURATION%",
                    "received_bytes": "%BYTES_RECEIVED%",
                    "sent_bytes": "%BYTES_SENT%",
                    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
                }
            },
        },
    }


def _tls(tls: Tls) -> Json:
    certificate: Json = {
        "certificate_chain": {"filename": tls.certificate_path},
        "private_key": {"filename": tls.private_key_path},
    }
    common: dict[str, Json] = {
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_certificates": [certificate],
    }
    if tls.client_ca_path:
        trusted: Json = {"filename": tls.client_ca_path}
        common["validation_context"] = {"trusted_ca": trusted}
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": TYPE_PREFIX + "transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": common,
            "require_client_certificate": bool(tls.client_ca_path),
        },
    }


def _local_replies() -> Json:
    """Return how answers that Envoy itself makes look: as Triton's errors do.

    The two fixed texts need no escaping, so they keep Triton's exact bytes; the
    JSON formatter would append a newline.
    """
    error: Json = {
        "filter": {"or_filter": {"filters": [_status_is(404), _status_is(405)]}},
        "body_format_override": _text('{"error":"%LOCAL_REPLY_BODY%"}', _JSON),
    }
    # The empty page at the root of the metrics port is no error.
    page: Json = {
        "filter": _status_is(200),
        "body_format_override": _text("%LOCAL_REPLY_BODY%", _TEXT),
    }
    return {
        "mappers": [error, page],
        "body_format": {
            "json_format": {"error": "%LOCAL_REPLY_BODY%"},
            "content_type": _JSON,
        },
    }


def _status_is(status: int) -> Json:
    value: Json = {"default_value": status, "runtime_key": f"status_{status}"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}


def _text(text: str, content_type: str) -> Json:
    source: Json = {"inline_string": text}
    return {"text_format_source": source, "content_type": content_type}
