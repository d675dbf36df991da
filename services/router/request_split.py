"""A ModelInferRequest parsed without its raw contents, which may be huge. Pure.

Protobuf would copy them twice before anybody has looked at them.
"""

from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from protos import inference_pb2
from services.core.errors import InternalError
from services.core.wire_format import WireFormatError, decode_varint, skip_field

Raw: TypeAlias = bytes | memoryview

_RAW_FIELD: Final = 7
_RAW_TAG: Final = 0x3A
# Below this protobuf's copies cost less than finding the fields by hand.
_WORTH_SPLITTING_BYTES: Final = 16 << 10


def split_request(
    body: bytes,
) -> tuple[inference_pb2.ModelInferRequest, list[Raw]]:
    """Return a request without its raw contents, and these.

    Raises:
        InternalError: ``body`` is no request.
    """
    head, raws = body, None
    if len(body) >= _WORTH_SPLITTING_BYTES:
        head, raws = _split(body)
    try:
        request = inference_pb2.ModelInferRequest.FromString(head)
    except DecodeError as error:
        raise InternalError("Unable to parse request") from error
    if raws is None:
        found: list[Raw] = list(request.raw_input_contents)
        del request.raw_input_contents[:]
        return request, found
    return request, raws


def _split(body: bytes) -> tuple[bytes, list[Raw] | None]:
    """Return all but the raw contents, and these; (body, None) if it is unusual."""
    view = memoryview(body)
    head: list[Raw] = []
    raws: list[Raw] = []
    start = position = 0
    try:
        while position < len(body):
            field, end = skip_field(body, position)
            if field == _RAW_FIELD:
                if body[position] != _RAW_TAG:
                    return body, None
                head.append(view[start:position])
                length, content = decode_varint(body, position + 1)
                raws.append(view[content : content + length])
                start = end
            position = end
    except WireFormatError:
        return body, None
    head.append(view[start:])
    return b"".join(head), raws
