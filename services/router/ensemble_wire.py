"""Requests and responses of an ensemble and its steps, cut and joined as bytes.

Tensors are never decoded: their data are slices of the message they came in, and
their headers (datatype and shape) are the very bytes that the response of one model
and the request to the next have in common. Pure.

Source: InferInputTensor and InferOutputTensor number name, datatype, shape and
parameters alike (inference.proto).
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from protos import inference_pb2 as pb
from services.core.shared_memory_region import REGION_PARAMETER
from services.core.wire_format import length_prefix, split_fields

_NAME: Final = 1
_VERSION: Final = 2
_ID: Final = 3
_PARAMETERS: Final = 4
_REQUEST_INPUTS: Final = 5
_REQUEST_OUTPUTS: Final = 6
_REQUEST_RAW: Final = 7
_RESPONSE_OUTPUTS: Final = 5
_RESPONSE_RAW: Final = 6
# Fields of a tensor's own message.
_TENSOR_NAME: Final = 1
_TENSOR_HEADER: Final = (2, 3)
_TENSOR_PARAMETERS: Final = 4
_OUTPUT_PARAMETERS: Final = 2
# Its data are elsewhere: no raw content belongs to it.
_ELSEWHERE: Final = REGION_PARAMETER.encode()

Buffer: TypeAlias = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor on its way through an ensemble.

    Attributes:
        header: Datatype and shape, serialized; for one that came from the client
            its parameters too.
        parameters: Those a model gave it, serialized.
        raw: Its data; None for one of the client's that is in shared memory.
    """

    header: bytes
    parameters: bytes = b""
    raw: Buffer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleRequest:
    """A request for an ensemble.

    Attributes:
        id: The serialized field; b"" without an id.
        parameters: The serialized fields of all request parameters.
        tensors: By name.
        outputs: The parameters of each requested output, serialized, by name.
    """

    id: bytes
    parameters: bytes
    tensors: Mapping[str, Tensor]
    outputs: Mapping[str, bytes]


def read_request(body: bytes) -> EnsembleRequest:
    """Cut an admitted ModelInferRequest.

    Raises:
        WireFormatError: the bytes are no message.
    """
    identity = parameters = b""
    inputs: list[tuple[str, bytes, bytes]] = []
    outputs: dict[str, bytes] = {}
    raws: list[Buffer] = []
    view = memoryview(body)
    for number, start, content, end in split_fields(body):
        if number == _REQUEST_INPUTS:
            inputs.append(_tensor_header(body[content:end]))
        elif number == _REQUEST_RAW:
            raws.append(view[content:end])
        elif number == _REQUEST_OUTPUTS:
            name, output_parameters = _requested_output(body[content:end])
            outputs[name] = output_parameters
        elif number == _PARAMETERS:
            parameters += body[start:end]
        elif number == _ID:
            identity = body[start:end]
    data = iter(raws)
    tensors = {
        name: Tensor(header + own, raw=None if _ELSEWHERE in own else next(data, b""))
        for name, header, own in inputs
    }
    return EnsembleRequest(
        id=identity, parameters=parameters, tensors=tensors, outputs=outputs
    )


def read_response(message: bytes) -> dict[str, Tensor]:
    """Return the outputs in a ModelInferResponse, by name.

    Raises:
        WireFormatError: the bytes are no message.
    """
    outputs: list[tuple[str, bytes, bytes]] = []
    raws: list[Buffer] = []
    view = memoryview(message)
    for number, _, content, end in split_fields(message):
        if number == _RESPONSE_OUTPUTS:
            outputs.append(_tensor_header(message[content:end]))
        elif number == _RESPONSE_RAW:
            raws.append(view[content:end])
    data = iter(raws)
    return {name: Tensor(header, own, next(data, b"")) for name, header, own in outputs}


def step_request(
    *,
    model: str,
    version: str,
    request: EnsembleRequest,
    inputs: Sequence[tuple[str, Tensor]],
    outputs: Iterable[tuple[str, bytes]],
) -> bytes:
    """Return the ModelInferRequest for a step.

    Args:
        model: To be called.
        version: "" for the newest.
        request: Whose id and parameters it has.
        inputs: By the model's names.
        outputs: What is asked for, with the parameters of each, serialized.
    """
    parts: list[Buffer] = [
        _model_fields(model, version),
        request.id,
        request.parameters,
        *(_tensor(_REQUEST_INPUTS, name, tensor.header) for name, tensor in inputs),
        *(_tensor(_REQUEST_OUTPUTS, name, own) for name, own in outputs),
    ]
    for _, tensor in inputs:
        if tensor.raw is not None:
            parts += (length_prefix(_REQUEST_RAW, len(tensor.raw)), tensor.raw)
    return b"".join(parts)


def ensemble_response(
    *,
    model: str,
    version: str,
    request: EnsembleRequest,
    outputs: Sequence[tuple[str, Tensor]],
) -> bytes:
    """Return the ModelInferResponse of an ensemble."""
    parts: list[Buffer] = [
        _model_fields(model, version),
        request.id,
        sequence_parameters(request.parameters),
    ]
    for name, tensor in outputs:
        own = tensor.header + tensor.parameters
        parts.append(_tensor(_RESPONSE_OUTPUTS, name, own))
    for _, tensor in outputs:
        if tensor.raw is not None:
            parts += (length_prefix(_RESPONSE_RAW, len(tensor.raw)), tensor.raw)
    return b"".join(parts)


@functools.lru_cache(maxsize=256)
def sequence_parameters(parameters: bytes) -> bytes:
    """Return the response parameters that an ensemble makes of a request's.

    Source: Triton adds what it knows of the sequence to the response of every
    ensemble, whether there is one or not; recorded in its answers.
    """
    sent = pb.ModelInferRequest.FromString(parameters).parameters
    response = pb.ModelInferResponse()
    identity = response.parameters["sequence_id"]
    identity.int64_param = 0
    if "sequence_id" in sent:
        identity.CopyFrom(sent["sequence_id"])
    for name in ("sequence_start", "sequence_end"):
        response.parameters[name].bool_param = name in sent and sent[name].bool_param
    return response.SerializeToString(deterministic=True)


@functools.lru_cache(maxsize=4096)
def _tensor_header(message: bytes) -> tuple[str, bytes, bytes]:
    """Return the name, datatype with shape, and the parameters of a tensor."""
    name = ""
    header = parameters = b""
    for number, start, content, end in split_fields(message):
        if number == _TENSOR_NAME:
            name = message[content:end].decode()
        elif number in _TENSOR_HEADER:
            header += message[start:end]
        elif number == _TENSOR_PARAMETERS:
            parameters += message[start:end]
    return name, header, parameters


@functools.lru_cache(maxsize=1024)
def _requested_output(message: bytes) -> tuple[str, bytes]:
    name, parameters = "", b""
    for number, start, content, end in split_fields(message):
        if number == _TENSOR_NAME:
            name = message[content:end].decode()
        elif number == _OUTPUT_PARAMETERS:
            parameters += message[start:end]
    return name, parameters


@functools.lru_cache(maxsize=4096)
def _tensor(field: int, name: str, rest: bytes) -> bytes:
    encoded = name.encode()
    own = length_prefix(_TENSOR_NAME, len(encoded)) + encoded + rest
    return length_prefix(field, len(own)) + own


@functools.lru_cache(maxsize=1024)
def _model_fields(model: str, version: str) -> bytes:
    fields = [(_NAME, model.encode()), (_VERSION, version.encode())]
    return b"".join(
        length_prefix(number, len(text)) + text for number, text in fields if text
    )
