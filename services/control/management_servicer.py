"""The management methods of the public service; routers forward them here."""

from collections.abc import Callable
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from protos import inference_pb2
from services.control.catalog import Catalog
from services.control.repository_index import repository_index
from services.control.route_table import routes_of
from services.control.supervisor import Supervisor
from services.core.errors import InternalError, UnsupportedError

_Context = grpc.aio.ServicerContext[Any, Any]

SERVICE: Final = "inference.GRPCInferenceService"

_CONFIG: Final = "config"
_FILE_PREFIX: Final = "file:"


class ManagementServicer:
    """What the repository extension asks; inference is the routers'."""

    def __init__(self, catalog: Catalog, supervisor: Supervisor) -> None:
        """Serve the models of ``catalog``."""
        self._catalog = catalog
        self._supervisor = supervisor

    async def RepositoryIndex(
        self, request: inference_pb2.RepositoryIndexRequest, context: _Context
    ) -> inference_pb2.RepositoryIndexResponse:
        """Return every model of the repositories and the state of its versions."""
        del context
        _refuse_repository_name(request.repository_name)
        reconciler = self._supervisor.reconciler
        entries = repository_index(
            await self._catalog.survey(),
            routes_of(reconciler.registry),
            reconciler.problems,
            without_version=self._catalog.without_version,
            only_ready=request.ready,
        )
        return inference_pb2.RepositoryIndexResponse(
            models=[
                inference_pb2.RepositoryIndexResponse.ModelIndex(
                    name=each.name,
                    version=each.version,
                    state=each.state,
                    reason=each.reason,
                )
                for each in entries
            ]
        )

    async def RepositoryModelLoad(
        self, request: inference_pb2.RepositoryModelLoadRequest, context: _Context
    ) -> inference_pb2.RepositoryModelLoadResponse:
        """Load or reload a model; it serves when this returns."""
        del context
        _refuse_repository_name(request.repository_name)
        override = None
        has_file = False
        for name, value in request.parameters.items():
            if name == _CONFIG:
                override = value.string_param
            elif name.startswith(_FILE_PREFIX):
                has_file = True
            else:
                raise InternalError("unexpected error on creating Triton parameter")
        if has_file:
            raise UnsupportedError(
                "loading a model from files in the request is not supported"
            )
        await self._catalog.load(request.model_name, override)
        return inference_pb2.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: inference_pb2.RepositoryModelUnloadRequest, context: _Context
    ) -> inference_pb2.RepositoryModelUnloadResponse:
        """Unload a model; it gets no more requests when this returns."""
        del context
        _refuse_repository_name(request.repository_name)
        await self._catalog.unload(request.model_name)
        return inference_pb2.RepositoryModelUnloadResponse()

    def methods(self) -> "grpc.GenericRpcHandler[Any, Any]":
        """Return the methods as a server takes them."""
        served: dict[str, tuple[Callable[..., Any], type[Message]]] = {
            "RepositoryIndex": (
                self.RepositoryIndex,
                inference_pb2.RepositoryIndexRequest,
            ),
            "RepositoryModelLoad": (
                self.RepositoryModelLoad,
                inference_pb2.RepositoryModelLoadRequest,
            ),
            "RepositoryModelUnload": (
                self.RepositoryModelUnload,
                inference_pb2.RepositoryModelUnloadRequest,
            ),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                method, request.FromString, _serialize
            )
            for name, (method, request) in served.items()
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)


class UnservedMethods(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Says of every other method of the public service that it is not here."""

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Return a method that refuses, for those of the public service."""
        service, _, name = handler_call_details.method.lstrip("/").partition("/")
        if service != SERVICE:
            return None

        async def refuse(request: bytes, context: _Context) -> bytes:
            del request, context
            raise UnsupportedError(f"{name} is not supported here")

        return grpc.unary_unary_rpc_method_handler(refuse)


def _refuse_repository_name(name: str) -> None:
    if name:
        raise UnsupportedError("'repository_name' specification is not supported")


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
