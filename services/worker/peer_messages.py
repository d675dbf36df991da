"""Requests to other models, and their answers, as protobuf messages."""

from collections.abc import Mapping, Sequence
from typing import Any

from protos import inference_pb2
from services.core.datatype import DataType
from services.core.trace_token import TRACE_PARAMETER
from services.worker.peers import Outcome
from services.worker.python_backend.call_messages import NamedTensor
from services.worker.request_details import SEQUENCE_END, SEQUENCE_START, Parameter

_INTERNAL = 13  # google.rpc.Code


def infer_request(header: Mapping[str, Any], tensors: Sequence[NamedTensor]) -> bytes:
    """Return a ModelInferRequest.

    Raises:
        InvalidRequestError: a tensor has no datatype.
    """
    version = header["version"]
    request = inference_pb2.ModelInferRequest(
        model_name=header["model"],
        model_version="" if version < 0 else str(version),
        id=header["id"],
        raw_input_contents=[bytes(tensor.data) for tensor in tensors],
    )
    for tensor in tensors:
        datatype = DataType.from_config(tensor.datatype).value
        request.inputs.add(name=tensor.name, datatype=datatype, shape=tensor.shape)
    for name in header["outputs"]:
        request.outputs.add(name=name)
    parameters = dict(header["parameters"])
    if header["correlation_id"]:
        flags = header["flags"]
        parameters["sequence_id"] = header["correlation_id"]
        parameters["sequence_start"] = bool(flags & SEQUENCE_START)
        parameters["sequence_end"] = bool(flags & SEQUENCE_END)
    if header["trace"]:
        parameters[TRACE_PARAMETER] = header["trace"]
    for key, value in parameters.items():
        _set(request.parameters[key], value)
    return request.SerializeToString()


def infer_response(message: bytes) -> tuple[list[NamedTensor], dict[str, Parameter]]:
    """Return tensors and parameters of a ModelInferResponse."""
    response = inference_pb2.ModelInferResponse.FromString(message)
    tensors = [
        NamedTensor(
            output.name,
            DataType.from_protocol(output.datatype).config_number,
            tuple(output.shape),
            raw,
        )
        for output, raw in zip(
            response.outputs, response.raw_output_contents, strict=True
        )
    ]
    parameters = {
        key: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
        for key, value in response.parameters.items()
    }
    return tensors, parameters


def streamed_outcome(outcome: Outcome) -> Outcome:
    """Return what a ModelStreamInferResponse holds."""
    if not isinstance(outcome, bytes):
        return outcome
    response = inference_pb2.ModelStreamInferResponse.FromString(outcome)
    if response.error_message:
        return (_INTERNAL, response.error_message)
    return response.infer_response.SerializeToString()


def management_request(operation: str, header: Mapping[str, Any]) -> bytes:
    """Return the request of a repository method, or of ModelReady."""
    name = header["model"]
    if operation == "ready":
        ready = inference_pb2.ModelReadyRequest(name=name, version=header["version"])
        return ready.SerializeToString()
    if operation == "unload":
        unload = inference_pb2.RepositoryModelUnloadRequest(model_name=name)
        unload.parameters["unload_dependents"].bool_param = header["dependents"]
        return unload.SerializeToString()
    load = inference_pb2.RepositoryModelLoadRequest(model_name=name)
    for key, value in header["files"].items():
        if key.startswith("file:"):
            load.parameters[key].bytes_param = value.encode("latin-1")
        else:
            load.parameters[key].string_param = value
    return load.SerializeToString()


def is_ready(message: bytes) -> bool:
    """Return what a ModelReadyResponse says."""
    return inference_pb2.ModelReadyResponse.FromString(message).ready


def _set(target: inference_pb2.InferParameter, value: Parameter) -> None:
    if isinstance(value, bool):
        target.bool_param = value
    elif isinstance(value, int):
        target.int64_param = value
    elif isinstance(value, float):
        target.double_param = value
    else:
        target.string_param = value
