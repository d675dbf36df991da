"""The management methods of the public service; routers forward them here."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from protos import inference_pb2
from services.control.catalog import Catalog
from services.control.overrides import Override
from services.control.repository_index import repository_index
from services.control.route_table import routes_of
from services.control.supervisor import Supervisor
from services.core.errors import InvalidRequestError, UnsupportedError

_Context = grpc.aio.ServicerContext[Any, Any]

SERVICE: Final = "inference.GRPCInferenceService"

_CONFIG: Final = "config"
_FILE_PREFIX: Final = "file:"
_UNLOAD_DEPENDENTS: Final = "unload_dependents"


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
        override = _override(request.parameters)
        await self._catalog.load(request.model_name, override)
        return inference_pb2.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: inference_pb2.RepositoryModelUnloadRequest, context: _Context
    ) -> inference_pb2.RepositoryModelUnloadResponse:
        """Unload a model; it gets no more requests when this returns."""
        del context
        _refuse_repository_name(request.repository_name)
        with_members = _unload_dependents(request.parameters)
        await self._catalog.unload(request.model_name, with_members=with_members)
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


def _override(
    parameters: Mapping[str, inference_pb2.ModelRepositoryParameter],
) -> Override:
    """Read the parameters of a load.

    Raises:
        InvalidRequestError: an unknown one, or one of another type.
    """
    config = None
    files = {}
    for name, value in parameters.items():
        if name == _CONFIG:
            _require_type(value, "string_param", f"load parameter '{name}'")
            config = value.string_param
        elif name.startswith(_FILE_PREFIX):
            _require_type(value, "bytes_param", f"load parameter '{name}'")
            files[name.removeprefix(_FILE_PREFIX)] = value.bytes_param
        else:
            raise InvalidRequestError(f"unrecognized load parameter '{name}'.")
    return Override(config=config, files=files)


def _unload_dependents(
    parameters: Mapping[str, inference_pb2.ModelRepositoryParameter],
) -> bool:
    """Read the parameters of an unload; those that nobody knows are passed over."""
    if _UNLOAD_DEPENDENTS not in parameters:
        return False
    value = parameters[_UNLOAD_DEPENDENTS]
    _require_type(value, "bool_param", f"'{_UNLOAD_DEPENDENTS}' parameter")
    return value.bool_param


def _require_type(
    value: inference_pb2.ModelRepositoryParameter, kind: str, what: str
) -> None:
    if value.WhichOneof("parameter_choice") != kind:
        raise InvalidRequestError(f"invalid value type for {what}, expected {kind}.")


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
