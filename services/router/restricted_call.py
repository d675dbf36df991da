"""Calls of methods that only those may use who know a header."""

import hmac
from collections.abc import Mapping
from typing import Final

import grpc

from services.core.completion_queue import (
    CallFactory,
    NativeCall,
    NativeMetadata,
    StreamCall,
    metadata_values,
)
from services.core.restrictions import Restriction

_PERMISSION_DENIED: Final[int] = grpc.StatusCode.PERMISSION_DENIED.value[0]
_UNAVAILABLE: Final[int] = grpc.StatusCode.UNAVAILABLE.value[0]


class _RefusedCall(StreamCall):
    """A call without the header: it ends before it is read."""

    __slots__ = ()

    def half_closed(self) -> None:
        """Nothing was asked for."""


class Guard:
    """Lets calls through that carry what their method demands."""

    def __init__(
        self, restrictions: Mapping[str, Restriction], *, is_rest: bool = False
    ) -> None:
        """Guard the methods that ``restrictions`` names, without their service.

        ``is_rest``: the answer is to become HTTP's 403, which is not what gRPC
        clients are told.
        """
        self._restrictions = restrictions
        self._code = _PERMISSION_DENIED if is_rest else _UNAVAILABLE
        self._what = "API" if is_rest else "protocol"

    def guarded(self, method: str, factory: CallFactory) -> CallFactory:
        """Return what serves ``method``: ``factory``, or a guard before it."""
        restriction = self._restrictions.get(method.rpartition("/")[2])
        if restriction is None:
            return factory
        # HTTP/2 has no capitals in names.
        key = restriction.header.lower()
        wanted = restriction.value.encode()
        text = (
            f"This {self._what} is restricted, expecting header '{restriction.header}'"
        )

        def accept(call: NativeCall, name: str, metadata: NativeMetadata) -> object:
            value = metadata_values(metadata).get(key, b"")
            found = value.encode() if isinstance(value, str) else value
            if hmac.compare_digest(found, wanted):
                return factory(call, name, metadata)
            refused = _RefusedCall(call, name, metadata)
            refused.finish(self._code, text)
            return refused

        return accept
