"""The REST methods besides inference, as the gateway calls them.

Each is one of the gRPC methods, asked for in HTTP's words and answered in JSON.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import ClassVar, Final, TypeAlias

from protos import inference_pb2 as pb
from services.core.completion_queue import NativeCall, NativeMetadata
from services.core.errors import InvalidRequestError
from services.core.version import VERSION
from services.router import rest_documents, rest_http_body, rest_repository
from services.router.cold_call import ColdMethod
from services.router.forward import TRAFFIC_METHOD
from services.router.inference import Inference
from services.router.model_metadata import model_metadata
from services.router.pooled_call import PooledCall
from services.router.readiness import Readiness
from services.router.rest_http_body import RestCall
from services.router.rest_response import HttpReply
from services.router.rest_settings import RestSettings
from services.router.rest_shared_memory import RestSharedMemory
from services.router.rest_status import (
    LONGEST_DETAILS_BYTES,
    rest_status,
    text_headers,
)
from services.router.rest_traffic import RestTraffic
from services.router.servicer import (
    SERVER_NAME,
    SERVICE,
    extensions,
)
from services.router.shared_memory_registry import SharedMemoryRegistry

REST_SERVICE: Final = "/nereid.rest.RestService/"

RestMethod: TypeAlias = Callable[[RestCall], HttpReply]


class RestService:
    """Answers what a path asks for, from the routes or through control."""

    def __init__(
        self,
        inference: Inference,
        readiness: Readiness,
        forwarded: Mapping[str, ColdMethod],
        shared_memory: SharedMemoryRegistry,
    ) -> None:
        """Answer for ``inference``; ``forwarded`` are control's methods by name."""
        self._shared_memory = RestSharedMemory(shared_memory)
        self._inference = inference
        self._readiness = readiness
        self._forwarded = forwarded
        self._settings = RestSettings(inference, forwarded)
        self._traffic = RestTraffic(forwarded[TRAFFIC_METHOD])

    def methods(self) -> Mapping[str, RestMethod]:
        """Return the methods by their full names."""
        memory = self._shared_memory
        return {
            REST_SERVICE + "SystemSharedMemoryStatus": memory.system_status,
            REST_SERVICE + "SystemSharedMemoryRegister": memory.system_register,
            REST_SERVICE + "SystemSharedMemoryUnregister": memory.system_unregister,
            REST_SERVICE + "CudaSharedMemoryStatus": memory.cuda_status,
            REST_SERVICE + "CudaSharedMemoryRegister": memory.cuda_register,
            REST_SERVICE + "CudaSharedMemoryUnregister": memory.cuda_unregister,
            REST_SERVICE + "ServerLive": self.server_live,
            REST_SERVICE + "ServerReady": self.server_ready,
            REST_SERVICE + "ServerMetadata": self.server_metadata,
            REST_SERVICE + "ModelReady": self.model_ready,
            REST_SERVICE + "ModelMetadata": self.model_metadata,
            REST_SERVICE + "ModelConfig": self.model_config,
            REST_SERVICE + "ModelStatistics": self.model_statistics,
            REST_SERVICE + "TraceSettingGet": self._settings.trace_get,
            REST_SERVICE + "TraceSettingUpdate": self._settings.trace_update,
            REST_SERVICE + "LogSettingsGet": self._settings.log_get,
            REST_SERVICE + "LogSettingsUpdate": self._settings.log_update,
            REST_SERVICE + "TrafficSettingGet": self._traffic.read,
            REST_SERVICE + "TrafficSettingUpdate": self._traffic.update,
            REST_SERVICE + "RepositoryIndex": self.repository_index,
            REST_SERVICE + "RepositoryModelLoad": self.repository_model_load,
            REST_SERVICE + "RepositoryModelUnload": self.repository_model_unload,
        }

    def server_live(self, call: RestCall) -> HttpReply:
        """Answer that the process is alive: it is, since it answers."""
        del call
        return rest_documents.EMPTY_TEXT

    def server_ready(self, call: RestCall) -> HttpReply:
        """Answer 200 if inferences would be executed, else 400 and why not."""
        del call
        if not self._readiness.is_server_ready():
            raise InvalidRequestError("Server not ready")
        return rest_documents.EMPTY_TEXT

    def server_metadata(self, call: RestCall) -> HttpReply:
        """Answer with name, version and extensions."""
        del call
        return rest_documents.server_metadata(
            SERVER_NAME, VERSION, extensions(self._inference)
        )

    def model_ready(self, call: RestCall) -> HttpReply:
        """Answer 200 if that model would execute an inference, else 400."""
        if not self._readiness.is_model_ready(call.model, call.version):
            raise InvalidRequestError(rest_documents.NOT_READY)
        return rest_documents.EMPTY_TEXT

    def model_metadata(self, call: RestCall) -> HttpReply:
        """Answer with the tensors of a model."""
        table = self._inference.table
        route = table.find(call.model, call.version)
        return rest_documents.model_metadata(model_metadata(table, route))

    def model_config(self, call: RestCall) -> HttpReply:
        """Answer with the complete configuration of a model."""
        route = self._inference.table.find(call.model, call.version)
        return rest_documents.model_config(route.config_message)

    def model_statistics(self, call: RestCall) -> HttpReply:
        """Answer with what has been counted, of one model or of all."""
        request = pb.ModelStatisticsRequest(name=call.model, version=call.version)
        forward = self._forwarded[SERVICE + "ModelStatistics"]
        answer = forward(request.SerializeToString())
        return rest_documents.model_statistics(
            pb.ModelStatisticsResponse.FromString(answer)
        )

    def repository_index(self, call: RestCall) -> HttpReply:
        """Answer with all models there are."""
        request = rest_documents.read_index_request(call.body, call.repository)
        forward = self._forwarded[SERVICE + "RepositoryIndex"]
        answer = forward(request.SerializeToString())
        return rest_documents.repository_index(
            pb.RepositoryIndexResponse.FromString(answer)
        )

    def repository_model_load(self, call: RestCall) -> HttpReply:
        """Answer once the model serves."""
        request = rest_repository.read_load_request(
            call.body, call.model, call.repository
        )
        self._forwarded[SERVICE + "RepositoryModelLoad"](request.SerializeToString())
        return rest_documents.EMPTY_JSON

    def repository_model_unload(self, call: RestCall) -> HttpReply:
        """Answer once the model gets no more requests."""
        request = rest_repository.read_unload_request(
            call.body, call.model, call.repository
        )
        self._forwarded[SERVICE + "RepositoryModelUnload"](request.SerializeToString())
        return rest_documents.EMPTY_JSON


class RestUnaryCall(PooledCall):
    """One call of a REST method, answered on the pool."""

    __slots__ = ("_handle",)

    longest_details: ClassVar[int] = LONGEST_DETAILS_BYTES

    def __init__(
        self,
        call: NativeCall,
        method: str,
        metadata: NativeMetadata,
        *,
        handle: RestMethod,
        pool: Executor,
    ) -> None:
        """Take over a call, to be answered by ``handle``."""
        self._handle = handle
        super().__init__(call, method, metadata, pool=pool)

    def respond(self, message: bytes) -> None:
        """Answer with what the method returns, its body and its headers."""
        path = text_headers(self.metadata).get(rest_http_body.ORIGINAL_PATH, "")
        reply = self._handle(rest_http_body.decode_call(message, path))
        self.answer(rest_http_body.encode_reply(reply), reply.headers)

    def refuse(self, error: Exception) -> None:
        """Answer with the status that makes Envoy answer as Triton would."""
        self.fail(*rest_status(error))


def rest_calls(
    handle: RestMethod, pool: Executor
) -> Callable[[NativeCall, str, NativeMetadata], RestUnaryCall]:
    """Return the factory of calls that ``handle`` answers."""

    def accept(
        call: NativeCall, method: str, metadata: NativeMetadata
    ) -> RestUnaryCall:
        return RestUnaryCall(call, method, metadata, handle=handle, pool=pool)

    return accept
