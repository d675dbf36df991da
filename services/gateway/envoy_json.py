"""The words that all parts of Envoy's configuration share."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

Json: TypeAlias = (
    Mapping[str, "Json"] | Sequence["Json"] | str | int | float | bool | None
)

TYPE_PREFIX: Final = "type.googleapis.com/envoy.extensions."
MIB: Final = 1 << 20
MAX_CONNECTIONS: Final = 50_000
MAX_STREAMS: Final = 1 << 20
# A large tensor must not wait for window updates.
HTTP2_WINDOWS: Final[Mapping[str, Json]] = {
    "initial_stream_window_size": 16 * MIB,
    "initial_connection_window_size": 64 * MIB,
}


def http_filter(name: str, type_name: str, **settings: Json) -> Json:
    """Return an HTTP filter of Envoy's, with its settings."""
    return {
        "name": f"envoy.filters.http.{name}",
        "typed_config": {"@type": f"{TYPE_PREFIX}filters.http.{type_name}", **settings},
    }
