"""What ``nereid serve`` asks control: the repository index."""

from typing import Final

import grpc

from protos import inference_pb2 as pb
from protos.inference_pb2_grpc import GRPCInferenceServiceStub
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
