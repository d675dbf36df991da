"""The door for routers that look for responses, or bring some."""

from typing import Any

import grpc

from protos import control_pb2, control_pb2_grpc
from services.control.response_store import ResponsesAwayError, ResponseStore
from services.core.errors import ModelNotReadyError, UnsupportedError

_Context = grpc.aio.ServicerContext[Any, Any]


class ResponseServicer(control_pb2_grpc.ResponseControlServicer):
    """Finds and keeps; what goes wrong is the router's miss."""

    def __init__(self, store: ResponseStore | None) -> None:
        """Serve ``store``; None: control was started without a shared cache."""
        self._store = store

    async def Find(
        self, request: control_pb2.FindResponse, context: _Context
    ) -> control_pb2.FoundResponse:
        """Return what was kept under a key."""
        del context
        try:
            found = await self._present.find(request.key)
        except ResponsesAwayError as error:
            raise ModelNotReadyError(f"the response cache is away: {error}") from error
        return control_pb2.FoundResponse(
            is_found=found is not None, response=found or b""
        )

    async def Keep(
        self, request: control_pb2.KeepResponse, context: _Context
    ) -> control_pb2.KeptResponse:
        """Keep a response."""
        del context
        try:
            evicted = await self._present.insert(request.key, request.response)
        except ResponsesAwayError as error:
            raise ModelNotReadyError(f"the response cache is away: {error}") from error
        return control_pb2.KeptResponse(evicted=evicted)

    @property
    def _present(self) -> ResponseStore:
        if self._store is None:
            raise UnsupportedError("control has no response cache")
        return self._store
