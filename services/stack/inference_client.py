"""What ``nereid serve`` asks control and the router."""

from typing import Final

import grpc

from protos import inference_pb2 as pb
from protos.inference_pb2_grpc import GRPCInferenceServiceStub
from services.core.logs import LogSettings
from services.stack.model_states import ModelEntry

TIMEOUT_S: Final = 2.0


def repository_index(target: str) -> tuple[ModelEntry, ...] | None:
    """Return the index that control at ``target`` gives; None if it gives none."""
    with grpc.insecure_channel(target) as channel:
        stub = GRPCInferenceServiceStub(channel)
        try:
            answer = stub.RepositoryIndex(
                pb.RepositoryIndexRequest(), timeout=TIMEOUT_S
            )
        except grpc.RpcError:
            return None
    return tuple(
        ModelEntry(
            name=model.name,
            version=model.version,
            state=model.state,
            reason=model.reason,
        )
        for model in answer.models
    )


def server_is_ready(target: str) -> bool:
    """Ask the router at ``target`` whether all that should serve does."""
    with grpc.insecure_channel(target) as channel:
        stub = GRPCInferenceServiceStub(channel)
        try:
            answer = stub.ServerReady(pb.ServerReadyRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError:
            return False
    return bool(answer.ready)


def log_settings(channel: grpc.Channel) -> LogSettings | None:
    """Return what clients have made of the log; None if control does not answer."""
    stub = GRPCInferenceServiceStub(channel)
    try:
        answer = stub.LogSettings(pb.LogSettingsRequest(), timeout=TIMEOUT_S)
    except grpc.RpcError:
        return None
    settings = answer.settings
    return LogSettings(
        verbose=settings["log_verbose_level"].uint32_param,
        info=settings["log_info"].bool_param,
        warning=settings["log_warning"].bool_param,
        error=settings["log_error"].bool_param,
        iso8601=settings["log_format"].string_param == "ISO8601",
    )
