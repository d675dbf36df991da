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
from services.core.restrictions import GATEWAY_HEADER, Restriction

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
        self,
        restrictions: Mapping[str, Restriction],
        *,
        is_rest: bool = False,
        is_internal: bool = False,
    ) -> None:
        """Guard methods.

        Args:
            restrictions: By the methods' names without their service.
            is_rest: The answer is to become HTTP's 403, which is not what gRPC
                clients are told.
            is_internal: Of those who call only some are clients: whose calls have
                come through the gateway.
        """
        self._restrictions = restrictions
        self._is_internal = is_internal
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

        def is_let_through(values: Mapping[str, str | bytes]) -> bool:
            if self._is_internal and GATEWAY_HEADER not in values:
                return True
            value = values.get(key, b"")
            found = value.encode() if isinstance(value, str) else value
            return hmac.compare_digest(found, wanted)

        def accept(call: NativeCall, name: str, metadata: NativeMetadata) -> object:
            if is_let_through(metadata_values(metadata)):
                return factory(call, name, metadata)
            refused = _RefusedCall(call, name, metadata)
            refused.finish(self._code, text)
            return refused

        return accept
