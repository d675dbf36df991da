"""The generate extension: JSON in the model's own words, both ways. Pure.

A key that is one of the model's inputs is that input, any other is a parameter, also
within ``parameters``; in the answer outputs and parameters are keys, and a tensor of
one element is no array.

Source: Triton's generate extension; how little a request says of shapes, and what
is made of it, is Triton's HTTP server's. Messages are its own.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

import orjson

from protos import inference_pb2 as pb
from services.core.datatype import DataType
from services.core.errors import InvalidRequestError
from services.core.model_config import ModelConfig, ModelInput
from services.router import rest_json, rest_parameters, rest_tensor
from services.router.rest_parameters import json_parameters
from services.router.rest_plan import ModelView, ReplyPlan, RestInfer
from services.router.rest_response import JSON, HttpReply

EVENT_STREAM: Final = "text/event-stream; charset=utf-8"

_ID: Final = "id"
_PARAMETERS: Final = "parameters"


def parse_generate(body: bytes, model: ModelView, *, max_input_bytes: int) -> RestInfer:
    """Read the body of POST .../generate or .../generate_stream.

    Args:
        body: All of it; it may be empty.
        model: Whom it is for.
        max_input_bytes: The most that all inputs may have together.

    Raises:
        InvalidRequestError: see the messages.
        InternalError: no JSON, or a value of another type.
    """
    document = rest_json.record(rest_json.parse(body) if body else {}, "request")
    request = pb.ModelInferRequest(model_name=model.name, model_version=model.version)
    _Reading(request, model.config, max_input_bytes).read(document, is_nested=False)
    return RestInfer(request=request.SerializeToString(), reply=ReplyPlan())


class _Reading:
    """One body being read into one request."""

    __slots__ = ("_inputs", "_is_batched", "_request", "_room_bytes")

    def __init__(
        self, request: pb.ModelInferRequest, config: ModelConfig, max_input_bytes: int
    ) -> None:
        self._request = request
        self._inputs = {tensor.name: tensor for tensor in config.inputs}
        self._is_batched = config.max_batch_size > 0
        self._room_bytes = max_input_bytes

    def read(self, document: Mapping[str, object], *, is_nested: bool) -> None:
        """Add what ``document`` says to the request."""
        for key, value in document.items():
            if key == _PARAMETERS and not is_nested:
                if key in self._inputs:
                    message = (
                        f"Keyword '{key}' for nested schema also given as input "
                        "tensor name"
                    )
                    raise InvalidRequestError(message)
                self.read(rest_json.record(value, key), is_nested=True)
            elif key in self._inputs:
                self._add_input(self._inputs[key], value)
            elif key == _ID and not is_nested:
                self._request.id = rest_json.string(value, key)
            else:
                rest_parameters.read_request_parameters(
                    {key: value}, self._request.parameters
                )

    def _add_input(self, declared: ModelInput, value: object) -> None:
        elements = value if isinstance(value, list) else [value]
        dims = (-1, *declared.dims) if self._is_batched else declared.dims
        raw = rest_tensor.raw_bytes(
            elements,
            declared.datatype,
            len(elements),
            tensor_name=declared.name,
            max_bytes=self._room_bytes,
        )
        self._room_bytes -= len(raw)
        self._request.inputs.add(
            name=declared.name,
            datatype=declared.datatype.value,
            shape=fitting_shape(dims, len(elements), declared.name),
        )
        self._request.raw_input_contents.append(raw)


def fitting_shape(dims: Sequence[int], element_count: int, name: str) -> list[int]:
    """Return the shape of ``dims`` that has ``element_count`` elements.

    The innermost variable dimension takes what the fixed ones leave over, the
    others are 1.

    Raises:
        InvalidRequestError: there is no such shape.
    """
    fixed = prod(dim for dim in dims if dim >= 0)
    shape = list(dims)
    rest, missing = divmod(element_count, fixed) if fixed else (element_count, 0)
    for place in reversed(range(len(shape))):
        if shape[place] < 0:
            shape[place], rest = rest, 1
    if missing or rest != 1:
        message = (
            f"The schema can not convert input '{name}' to tensor with proper shape"
        )
        raise InvalidRequestError(message)
    return shape


def encode_generate(response: bytes) -> HttpReply:
    """Return the answer to .../generate from a serialized ModelInferResponse.

    Raises:
        InvalidRequestError: an output that JSON cannot carry.
    """
    return HttpReply(content_type=JSON, body=_document(response))


def encode_event(response: bytes) -> HttpReply:
    """Return the same as an event of .../generate_stream."""
    return HttpReply(content_type=EVENT_STREAM, body=event(_document(response)))


def event(data: bytes) -> bytes:
    """Return ``data``, JSON without line breaks, as a server-sent event."""
    return b"data: " + data + b"\n\n"


def _document(response: bytes) -> bytes:
    message = pb.ModelInferResponse.FromString(response)
    document: dict[str, object] = {_ID: message.id} if message.id else {}
    document["model_name"] = message.model_name
    document["model_version"] = message.model_version
    for name, parameter in json_parameters(message.parameters).items():
        document.setdefault(name, parameter)
    for output, raw in zip(message.outputs, message.raw_output_contents, strict=True):
        elements = rest_tensor.json_elements(
            raw, DataType.from_protocol(output.datatype)
        )
        text = orjson.dumps(elements, option=orjson.OPT_SERIALIZE_NUMPY)
        if prod(output.shape) == 1:
            text = text[1:-1]
        document.setdefault(output.name, orjson.Fragment(text))
    return orjson.dumps(document)
