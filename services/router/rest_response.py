"""Inference responses, turned into the body and headers of a REST answer. Pure.

Source: KServe V2, "Inference Response JSON Object", and Triton's binary tensor
data extension: outputs asked for as binary leave as raw bytes behind the JSON, in
the order in which the JSON names them.
"""

from dataclasses import dataclass
from typing import Final

import orjson

from protos import inference_pb2 as pb
from services.core.datatype import DataType
from services.core.wire_format import decode_varint, skip_field
from services.router import rest_compression, rest_tensor
from services.router.request_timing import server_timing
from services.router.rest_parameters import json_parameters
from services.router.rest_plan import Piece, ReplyPlan

JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
SERVER_TIMING: Final = "server-timing"
HEADER_LENGTH: Final = "inference-header-content-length"

_RAW_FIELD: Final = 6
# Below this protobuf's two copies cost less than finding the fields by hand.
_WORTH_SLICING_BYTES: Final = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """An answer with status 200.

    Attributes:
        content_type: Of the body.
        headers: Besides Content-Type, names in lower case: gRPC metadata.
        body: All of it.
    """

    content_type: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


def encode_infer(response: bytes, plan: ReplyPlan) -> HttpReply:
    """Return the answer that tells of ``response``.

    Args:
        response: A serialized ``inference.ModelInferResponse`` with raw contents.
        plan: Of the request.

    Raises:
        InvalidRequestError: an output that JSON cannot carry is not asked for as
            binary.
    """
    message, raws = _split(response)
    document: dict[str, object] = {"id": message.id} if message.id else {}
    document["model_name"] = message.model_name
    document["model_version"] = message.model_version
    if message.parameters:
        document["parameters"] = json_parameters(message.parameters)
    tail: list[Piece] = []
    contents = iter(raws)
    # A worker may leave out the contents that went through shared memory.
    has_all = len(raws) == len(message.outputs)
    outputs: list[dict[str, object]] = []
    for output in message.outputs:
        shared = output.name in plan.in_shared_memory
        raw = b"" if shared and not has_all else next(contents, b"")
        outputs.append(_output(output, None if shared else raw, plan, tail))
    document["outputs"] = outputs
    text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    timing = server_timing(message.parameters) if message.parameters else ""
    return _reply(text, tail, plan.encoding, timing)


def _split(response: bytes) -> tuple[pb.ModelInferResponse, list[Piece]]:
    """Return all but the raw contents, and these without copies if they are large."""
    if len(response) < _WORTH_SLICING_BYTES:
        message = pb.ModelInferResponse.FromString(response)
        return message, list(message.raw_output_contents)
    view = memoryview(response)
    head: list[Piece] = []
    raws: list[Piece] = []
    start = position = 0
    while position < len(view):
        field, end = skip_field(response, position)
        if field == _RAW_FIELD:
            if start < position:
                head.append(view[start:position])
            length, content = decode_varint(response, position + 1)
            raws.append(view[content : content + length])
            start = end
        position = end
    if start < position:
        head.append(view[start:position])
    return pb.ModelInferResponse.FromString(b"".join(head)), raws


def _output(
    output: pb.ModelInferResponse.InferOutputTensor,
    raw: Piece | None,
    plan: ReplyPlan,
    tail: list[Piece],
) -> dict[str, object]:
    """Return what the JSON says of one output; add what comes behind to ``tail``."""
    name = output.name
    described: dict[str, object] = {
        "name": name,
        "datatype": output.datatype,
        "shape": list(output.shape),
    }
    if raw is None:
        return described
    if plan.binary.get(name, plan.binary_by_default):
        described["parameters"] = {"binary_data_size": len(raw)}
        tail.append(raw)
    else:
        datatype = DataType.from_protocol(output.datatype)
        described["data"] = rest_tensor.json_elements(raw, datatype)
    return described


def _reply(text: bytes, tail: list[Piece], encoding: str, timing: str) -> HttpReply:
    content_type, body = JSON, text
    headers = [(SERVER_TIMING, timing)] if timing else []
    if tail:
        content_type, body = OCTETS, b"".join((text, *tail))
        headers.append((HEADER_LENGTH, str(len(text))))
    if encoding:
        body = rest_compression.compressed(body, encoding)
        headers.append(("content-encoding", encoding))
    return HttpReply(content_type=content_type, headers=tuple(headers), body=body)
