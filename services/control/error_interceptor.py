"""Turns errors that servicers raise into statuses, in one place."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
import structlog

from services.core.errors import ServingError
from services.core.status import status_of

_log = structlog.get_logger(__name__)

_Context = grpc.aio.ServicerContext[Any, Any]
_T = TypeVar("_T")


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Wraps every method of ours: unary ones, and streams that read and write."""

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any]"]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """Return the method, wrapped."""
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.request_streaming != handler.response_streaming:
            return handler  # type: ignore[no-any-return]  # the stubs know no None
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                _guarded(handler.stream_stream),
                handler.request_deserializer,
                handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            _guarded(handler.unary_unary),
            handler.request_deserializer,
            handler.response_serializer,
        )


def _guarded(
    method: Callable[[Any, _Context], Awaitable[_T]],
) -> Callable[[Any, _Context], Awaitable[_T]]:
    async def guarded(request: Any | AsyncIterator[Any], context: _Context) -> _T:  # noqa: ANN401
        try:
            return await method(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            if not isinstance(error, ServingError):
                _log.error("a call failed unexpectedly", exc_info=error)
            code, message = status_of(error)
            await context.abort(code, message)
            raise

    return guarded
