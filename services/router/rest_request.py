"""REST inference requests, turned into the protobuf that admission takes. Pure.

A body is JSON, behind it the raw tensors that the JSON announces by their sizes;
``Inference-Header-Content-Length`` says where the JSON ends. Zero there means that
the whole body is the one input of the model.

Source: KServe V2 and Triton's binary tensor data, classification and raw binary
request extensions. Statuses and messages are Triton's.
"""

import math
from collections.abc import Mapping
from typing import Final

from protos import inference_pb2 as pb
from services.core.datatype import DataType
from services.core.errors import InvalidRequestError, UnsupportedError
from services.core.model_config import ModelConfig, ModelInput
from services.core.wire_format import length_prefix
from services.router import rest_compression, rest_json
from services.router.rest_infer_document import InferDocument
from services.router.rest_plan import ModelView, Piece, ReplyPlan, RestInfer

__all__ = [
    "DEFAULT_MAX_INPUT_BYTES",
    "ModelView",
    "ReplyPlan",
    "RestInfer",
    "check_size",
    "parse_infer",
]

DEFAULT_MAX_INPUT_BYTES: Final = 64 * 1024 * 1024
HEADER_LENGTH: Final = "inference-header-content-length"

_RAW_FIELD: Final = 7
_NO_ID: Final = "[request id: <id_unknown>] "


def parse_infer(
    body: bytes,
    headers: Mapping[str, str],
    model: ModelView,
    *,
    max_input_bytes: int = DEFAULT_MAX_INPUT_BYTES,
) -> RestInfer:
    """Read the body of POST .../infer.

    Args:
        body: The whole body, as it arrived.
        headers: Of the request; names in lower case, as gRPC metadata has them.
        model: Whom it is for.
        max_input_bytes: The most that a body may have, before and after
            decompression, and a tensor, once it is out of its JSON.

    Raises:
        UnsupportedError: the model is decoupled, or an unknown Content-Encoding.
        InvalidRequestError: see the messages.
        InternalError: no JSON, or not the JSON of an inference request.
    """
    if model.config.decoupled:
        message = (
            "HTTP end point doesn't support models with decoupled transaction policy"
        )
        raise UnsupportedError(message)
    check_size(len(body), max_input_bytes)
    body = _decompressed(body, headers, model.config, max_input_bytes)
    accepted = headers.get("accept-encoding")
    chosen = rest_compression.chosen_encoding(accepted) if accepted else ""
    length = _header_length(headers, body, model.config)
    if length == 0:
        return _raw_request(body, model, chosen)
    view = memoryview(body)
    document = rest_json.parse(body if length == len(body) else view[:length])
    return InferDocument(
        model=model, tail=view[length:], max_input_bytes=max_input_bytes
    ).request(document, chosen)


def check_size(size_bytes: int, max_input_bytes: int) -> None:
    """Refuse a body that has become too long; while it arrives, or afterwards.

    Raises:
        InvalidRequestError: longer than --http-max-input-size.
    """
    if size_bytes > max_input_bytes:
        message = (
            f"the request body has more than the {max_input_bytes} bytes that "
            "--http-max-input-size allows"
        )
        raise InvalidRequestError(message)


def _decompressed(
    body: bytes, headers: Mapping[str, str], config: ModelConfig, max_bytes: int
) -> bytes:
    encoding = headers.get("content-encoding")
    if not encoding:
        return body
    try:
        return rest_compression.decompressed(body, encoding, max_bytes)
    except rest_compression.DamagedBodyError:
        # Triton goes on without a body, and complains of all but some models.
        _raw_input(config)
        raise


def _header_length(headers: Mapping[str, str], body: bytes, config: ModelConfig) -> int:
    """Return how many bytes of ``body`` are JSON."""
    text = headers.get(HEADER_LENGTH)
    if text is None:
        return len(body)
    digits = text.strip().removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        # Triton reads 0, and from there complains of all but some models.
        _raw_input(config)
        message = f"Unable to parse {HEADER_LENGTH}, got: {text}"
        raise InvalidRequestError(message)
    # As text first: Python reads no integer of thousands of digits.
    is_short = len(digits.lstrip("0")) <= len(str(len(body)))
    length = int(text) if is_short else len(body) + 1
    if not 0 <= length <= len(body):
        message = (
            f"inference header size should be in range (0, {len(body)}), got: {text}"
        )
        raise InvalidRequestError(message)
    return length


def _raw_request(body: bytes, model: ModelView, encoding: str) -> RestInfer:
    """Return the request whose one input is ``body``."""
    declared = _raw_input(model.config)
    raw: list[Piece] = [body]
    size = len(body)
    if declared.datatype is DataType.BYTES:
        raw.insert(0, size.to_bytes(4, "little"))
        size += 4
    dims = _deduced_dims(declared, len(body))
    shape = (1, *dims) if model.config.max_batch_size > 0 else dims
    request = pb.ModelInferRequest(model_name=model.name, model_version=model.version)
    request.inputs.add(
        name=declared.name, datatype=declared.datatype.value, shape=shape
    )
    head = request.SerializeToString()
    pieces = (head, length_prefix(_RAW_FIELD, size), *raw)
    plan = ReplyPlan(binary_by_default=True, encoding=encoding)
    return RestInfer(request=b"".join(pieces), reply=plan)


def _raw_input(config: ModelConfig) -> ModelInput:
    """Return the one input that a raw body can be for.

    Raises:
        InvalidRequestError: the model has none or several, or its shape does not
            follow from the size.
    """
    if len(config.inputs) != 1:
        message = (
            f"{_NO_ID}Raw request must only have 1 input (found 1) to be deduced but "
            f"got {len(config.inputs)} inputs in '{config.name}' model configuration"
        )
        raise InvalidRequestError(message)
    declared = config.inputs[0]
    if declared.datatype is DataType.BYTES and declared.dims != (1,):
        message = (
            f"{_NO_ID}For BYTE datatype raw input '{declared.name}', the model must "
            "have input shape [1]"
        )
        raise InvalidRequestError(message)
    if sum(dim < 0 for dim in declared.dims) > 1:
        message = (
            f"{_NO_ID}The shape of the raw input '{declared.name}' can not be deduced "
            "because there are more than one variable-sized dimension"
        )
        raise InvalidRequestError(message)
    return declared


def _deduced_dims(declared: ModelInput, size_bytes: int) -> tuple[int, ...]:
    """Return the dims with the variable one filled in; admission checks the size."""
    item = declared.datatype.byte_size or 1
    fixed = math.prod(dim for dim in declared.dims if dim >= 0)
    variable = size_bytes // (item * fixed)
    return tuple(variable if dim < 0 else dim for dim in declared.dims)
