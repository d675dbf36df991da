"""The methods a router answers itself: decode, look up, encode.

They read immutable snapshots, so they may run on any thread; only who is ready may
have to be asked.
"""

from collections.abc import Mapping
from typing import Final

from google.protobuf.message import DecodeError

from protos import inference_pb2 as pb
from protos import model_config_pb2
from services.core.errors import InternalError
from services.core.version import VERSION
from services.router.cold_call import ColdMethod
from services.router.inference import Inference
from services.router.model_metadata import model_metadata
from services.router.readiness import Readiness

SERVICE: Final = "/inference.GRPCInferenceService/"
SERVER_NAME: Final = "nereid"
# Exactly the extensions that work.
EXTENSIONS: Final = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


def extensions(inference: Inference) -> tuple[str, ...]:
    """Return those of ``EXTENSIONS`` that are switched on, and possible."""
    absent = set()
    if not inference.statistics.is_counting:
        absent.add("statistics")
    if not inference.dispatcher.has_gpu():
        absent.add("cuda_shared_memory")
    return tuple(each for each in EXTENSIONS if each not in absent)


class InferenceServicer:
    """Health, metadata and configuration of what is routed here."""

    def __init__(self, inference: Inference, readiness: Readiness) -> None:
        """Answer for ``inference``."""
        self._inference = inference
        self._readiness = readiness

    def methods(self) -> Mapping[str, ColdMethod]:
        """Return the methods by their full names."""
        return {
            SERVICE + "ServerLive": self.server_live,
            SERVICE + "ServerReady": self.server_ready,
            SERVICE + "ModelReady": self.model_ready,
            SERVICE + "ServerMetadata": self.server_metadata,
            SERVICE + "ModelMetadata": self.model_metadata,
            SERVICE + "ModelConfig": self.model_config,
        }

    def server_live(self, message: bytes) -> bytes:
        """Answer that the process is alive: it is, since it answers."""
        del message
        return pb.ServerLiveResponse(live=True).SerializeToString()

    def server_ready(self, message: bytes) -> bytes:
        """Answer whether inferences would be executed."""
        del message
        ready = self._readiness.is_server_ready()
        return pb.ServerReadyResponse(ready=ready).SerializeToString()

    def model_ready(self, message: bytes) -> bytes:
        """Answer whether an inference on that version would be executed.

        Unknown models are not ready, which is no error.
        """
        try:
            request = pb.ModelReadyRequest.FromString(message)
        except DecodeError as error:
            raise _unparsable() from error
        ready = self._readiness.is_model_ready(request.name, request.version)
        return pb.ModelReadyResponse(ready=ready).SerializeToString()

    def server_metadata(self, message: bytes) -> bytes:
        """Answer with name, version and the extensions that work."""
        del message
        return pb.ServerMetadataResponse(
            name=SERVER_NAME, version=VERSION, extensions=extensions(self._inference)
        ).SerializeToString()

    def model_metadata(self, message: bytes) -> bytes:
        """Answer with the tensors of a model."""
        try:
            request = pb.ModelMetadataRequest.FromString(message)
        except DecodeError as error:
            raise _unparsable() from error
        table = self._inference.table
        route = table.find(request.name, request.version)
        return model_metadata(table, route).SerializeToString()

    def model_config(self, message: bytes) -> bytes:
        """Answer with the complete configuration of a model."""
        try:
            request = pb.ModelConfigRequest.FromString(message)
        except DecodeError as error:
            raise _unparsable() from error
        route = self._inference.table.find(request.name, request.version)
        config = model_config_pb2.ModelConfig.FromString(route.config_message)
        return pb.ModelConfigResponse(config=config).SerializeToString()


def _unparsable() -> InternalError:
    return InternalError("Unable to parse request")
