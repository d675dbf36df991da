"""A port that speaks HTTP/1.1 and HTTP/2."""

from typing import Final

from services.gateway.envoy_json import HTTP2_WINDOWS, MIB, TYPE_PREFIX, Json

NEVER: Final = "0s"

_CONNECTION_MANAGER: Final = (
    "filters.network.http_connection_manager.v3.HttpConnectionManager"
)


def listener(
    name: str, address: str, port: int, routes: list[Json], filters: list[Json]
) -> Json:
    """Return a listener that answers ``routes`` through ``filters``."""
    manager: dict[str, Json] = {
        "@type": TYPE_PREFIX + _CONNECTION_MANAGER,
        "stat_prefix": name,
        "codec_type": "AUTO",
        "http_protocol_options": {
            "accept_http_10": True,
            "header_key_format": {"proper_case_words": {}},
        },
        "http2_protocol_options": HTTP2_WINDOWS,
        "stream_idle_timeout": NEVER,
        "request_timeout": NEVER,
        "max_request_headers_kb": 64,
        "server_header_transformation": "PASS_THROUGH",
        "generate_request_id": False,
        "local_reply_config": _local_replies(),
        "route_config": {
            "name": name,
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}],
        },
        "http_filters": filters,
    }
    return {
        "name": name,
        "address": {"socket_address": {"address": address, "port_value": port}},
        "per_connection_buffer_limit_bytes": MIB,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": manager,
                    }
                ]
            }
        ],
    }


def _local_replies() -> Json:
    """Return how answers that Envoy itself makes look: as Triton's errors do.

    The two fixed texts need no escaping, so they keep Triton's exact bytes; the
    JSON formatter would append a newline.
    """
    fixed: list[Json] = [
        {
            "status_code_filter": {
                "comparison": {
                    "op": "EQ",
                    "value": {
                        "default_value": status,
                        "runtime_key": f"status_{status}",
                    },
                }
            }
        }
        for status in (404, 405)
    ]
    return {
        "mappers": [
            {
                "filter": {"or_filter": {"filters": fixed}},
                "body_format_override": {
                    "text_format_source": {
                        "inline_string": '{"error":"%LOCAL_REPLY_BODY%"}'
                    },
                    "content_type": "application/json",
                },
            }
        ],
        "body_format": {
            "json_format": {"error": "%LOCAL_REPLY_BODY%"},
            "content_type": "application/json",
        },
    }
