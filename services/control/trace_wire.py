"""From the messages about traced requests to control's records of them."""

import json
from collections.abc import Iterator, Sequence

import numpy as np
from google.protobuf.message import DecodeError

from protos import control_pb2, inference_pb2
from services.control.commands import SetTraces
from services.control.trace_records import TensorText, Trace
from services.control.trace_settings import (
    OPENTELEMETRY_MODE,
    TraceLevel,
    TraceScope,
    TraceSettings,
)
from services.core import byte_tensor
from services.core.datatype import DataType
from services.core.errors import InvalidRequestError

_REGION = "shared_memory_region"

_Tensor = (
    inference_pb2.ModelInferRequest.InferInputTensor
    | inference_pb2.ModelInferResponse.InferOutputTensor
)


def traces_to_proto(order: SetTraces) -> control_pb2.TraceSettings:
    """Return trace settings as routers get them."""
    settings = order.settings
    return control_pb2.TraceSettings(
        revision=order.revision,
        open_telemetry=settings.mode == OPENTELEMETRY_MODE,
        overall=_scope(settings, settings.overall),
        models={n: _scope(settings, each) for n, each in settings.models.items()},
    )


def _scope(settings: TraceSettings, scope: TraceScope) -> control_pb2.TraceScope:
    values = scope.values
    return control_pb2.TraceScope(
        session=scope.session,
        rate=values.rate if settings.is_active(values) else 0,
        count=values.count,
        timestamps=TraceLevel.TIMESTAMPS in values.level,
        tensors=TraceLevel.TENSORS in values.level,
    )


def trace_from_proto(message: control_pb2.TracedRequest) -> Trace:
    """Return what a router says of a traced request."""
    return _trace(message, message.wall_clock_offset_ns)


def _trace(message: control_pb2.TracedRequest, offset_ns: int) -> Trace:
    return Trace(
        model=message.model,
        version=message.version,
        request_id=message.request_id,
        timestamps=tuple((each.name, each.ns) for each in message.timestamps),
        inputs=_inputs(message.request),
        outputs=_outputs(message.response),
        children=tuple(_trace(child, offset_ns) for child in message.children),
        traceparent=message.traceparent,
        wall_clock_offset_ns=offset_ns,
        error=message.error,
    )


def _inputs(request: bytes) -> tuple[TensorText, ...]:
    try:
        decoded = inference_pb2.ModelInferRequest.FromString(request)
    except DecodeError:
        return ()
    return tuple(_tensors(decoded.inputs, decoded.raw_input_contents))


def _outputs(response: bytes) -> tuple[TensorText, ...]:
    try:
        decoded = inference_pb2.ModelInferResponse.FromString(response)
    except DecodeError:
        return ()
    return tuple(_tensors(decoded.outputs, decoded.raw_output_contents))


def _tensors(
    tensors: Sequence[_Tensor], contents: Sequence[bytes]
) -> Iterator[TensorText]:
    """Yield tensors in words; what is in shared memory has no data here."""
    rest = iter(contents)
    for tensor in tensors:
        content = b"" if _REGION in tensor.parameters else next(rest, b"")
        yield TensorText(
            name=tensor.name,
            data=tensor_data(tensor.datatype, content),
            shape=tuple(tensor.shape),
            datatype=tensor.datatype,
        )


def tensor_data(datatype: str, content: bytes) -> str:
    r"""Return a tensor's values as Triton writes them, with commas between them.

    Numbers have six digits at most. An element of BYTES is a JSON string, in which
    bytes that are not UTF-8 stand as ``\xNN``, so that ``[`` + data + ``]`` is JSON.
    """
    try:
        kind = DataType.from_protocol(datatype)
        if kind is DataType.BYTES:
            return ",".join(map(_quoted, byte_tensor.decode(content)))
        values = np.frombuffer(content, kind.numpy_dtype)
    except (InvalidRequestError, ValueError):
        return ""
    if kind is DataType.BF16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if values.dtype.kind == "f":
        return ",".join(f"{value:g}" for value in values.tolist())
    return ",".join(str(int(value)) for value in values.tolist())


def _quoted(element: bytes) -> str:
    text = element.decode(errors="backslashreplace")
    return json.dumps(text, ensure_ascii=False)
