"""The worker's protobuf messages, read and written."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from protos import inference_pb2, worker_pb2
from services.core import wire_format
from services.core.errors import InvalidRequestError
from services.core.shared_memory_region import REGION_PARAMETER, SharedMemoryRegion
from services.core.status import status_of
from services.worker.layout import OutputForm, ParsedInput, ParsedRequest
from services.worker.request_details import Parameter, details_of
from services.worker.sequence_states import State, States
from services.worker.signature import TensorSpec

_PLAIN: Final = OutputForm()
# Fields of BatchRequest, BatchResponse and StreamedReply.
# What a BatchRequest that is no batch may begin with, but for the turns.
_OF_REQUESTS_TAGS: Final = (b"\x1a", b"\x42", b"\x4a")
_NOTICE_TAGS: Final = (*_OF_REQUESTS_TAGS, b"\x32", b"\x3a")
ASKS_TURN: Final = worker_pb2.BatchRequest(asks_turn=True).SerializeToString()
PASSES_TURN: Final = worker_pb2.BatchRequest(passes_turn=True).SerializeToString()
TURN: Final = worker_pb2.BatchResponse(turn=True).SerializeToString()
_STREAMED: Final = 3
_REPLY_OF_STREAMED: Final = 4
FAREWELL: Final = worker_pb2.BatchResponse(farewell=True).SerializeToString()


def parse_request(request: bytes) -> ParsedRequest:
    """Read the header of a serialized ModelInferRequest.

    Raises:
        InvalidRequestError: the bytes are not one.
    """
    message = _parse(request)
    return ParsedRequest(
        inputs=tuple(
            ParsedInput(
                name=tensor.name,
                datatype=tensor.datatype,
                shape=tuple(tensor.shape),
                region=_region(tensor.parameters),
            )
            for tensor in message.inputs
        ),
        output_names=tuple(tensor.name for tensor in message.outputs),
        output_forms={
            tensor.name: form
            for tensor in message.outputs
            if (form := _form(tensor.parameters)) != _PLAIN
        },
        details=details_of(_parameters(message)),
    )


def canonical_request(request: bytes) -> bytes:
    """Return an equal ModelInferRequest whose fields come in ascending order.

    Raises:
        InvalidRequestError: the bytes are not one.
    """
    message = _parse(request)
    message.DiscardUnknownFields()
    return message.SerializeToString(deterministic=True)


def response_head(model_name: str, model_version: int) -> bytes:
    """Return what a ModelInferResponse begins with, up to its ``id``."""
    response = inference_pb2.ModelInferResponse(
        model_name=model_name, model_version=str(model_version)
    )
    return response.SerializeToString()


def response_output(spec: TensorSpec, shape: tuple[int, ...]) -> bytes:
    """Return one entry of ModelInferResponse.outputs, with tag and length."""
    response = inference_pb2.ModelInferResponse()
    response.outputs.add(name=spec.name, datatype=spec.datatype.value, shape=shape)
    return response.SerializeToString()


def response_tensor(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """Return one entry of ModelInferResponse.outputs, with tag and length."""
    response = inference_pb2.ModelInferResponse()
    response.outputs.add(name=name, datatype=datatype, shape=shape)
    return response.SerializeToString()


def response_parameters(parameters: Mapping[str, Parameter]) -> bytes:
    """Return ModelInferResponse.parameters, with tags and lengths."""
    response = inference_pb2.ModelInferResponse()
    for key, value in parameters.items():
        target = response.parameters[key]
        if isinstance(value, bool):
            target.bool_param = value
        elif isinstance(value, int):
            target.int64_param = value
        elif isinstance(value, float):
            target.double_param = value
        else:
            target.string_param = value
    return response.SerializeToString(deterministic=True)


def error_status(error: Exception) -> tuple[int, str]:
    """Return an error's google.rpc.Code, and its text for the client."""
    code, text = status_of(error)
    return int(code.value[0]), text


def reply_error(code: int, text: str, is_answer: bool = False) -> bytes:  # noqa: FBT001, FBT002 - as BackendFailure has them
    """Return a Reply that is an error; see ``error_reply``."""
    return _error(code, text, is_answer=is_answer).SerializeToString()


def infer_request(
    model_name: str,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    contents: Sequence[bytes],
    *,
    is_sequence: bool = False,
) -> bytes:
    """Return a ModelInferRequest of our own.

    Args:
        model_name: Whose.
        tensors: Datatype and shape by input name.
        contents: As on the wire, in the order of ``tensors``.
        is_sequence: Whether it is a sequence of this one request.
    """
    request = inference_pb2.ModelInferRequest(model_name=model_name)
    if is_sequence:
        request.parameters["sequence_id"].int64_param = 1
        request.parameters["sequence_start"].bool_param = True
        request.parameters["sequence_end"].bool_param = True
    for name, (datatype, shape) in tensors.items():
        request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.extend(contents)
    return request.SerializeToString()


def batch_request(requests: Sequence[bytes]) -> bytes:
    """Return a BatchRequest."""
    return worker_pb2.BatchRequest(request=requests).SerializeToString()


def problems_of(message: bytes) -> list[str]:
    """Return the texts of all errors in a BatchResponse."""
    response = worker_pb2.BatchResponse.FromString(message)
    streamed = (each.reply for each in response.streamed)
    return [
        reply.error.message
        for reply in (*response.reply, *streamed)
        if reply.WhichOneof("outcome") == "error"
    ]


def streamed_head(
    batch: int, request: int, *, is_final: bool, output_ns: int = 0
) -> bytes:
    """Return a StreamedReply without its reply, which took so long to encode."""
    head = worker_pb2.StreamedReply(
        batch=batch, request=request, final=is_final, compute_output_ns=output_ns
    )
    return head.SerializeToString()


def streamed_reply(head: bytes, reply: Sequence[bytes | memoryview]) -> bytes:
    """Return a BatchResponse with one StreamedReply.

    Args:
        head: As of ``streamed_head``.
        reply: A Reply in pieces; none if there is no reply.
    """
    parts = [head]
    size = len(head)
    if reply:
        length = sum(map(len, reply))
        prefix = wire_format.length_prefix(_REPLY_OF_STREAMED, length)
        parts.append(prefix)
        size += len(prefix) + length
    outer = wire_format.length_prefix(_STREAMED, size)
    return b"".join((outer, *parts, *reply))


class Notice(NamedTuple):
    """A BatchRequest that is no batch.

    Attributes:
        cancelled: Requests nobody waits for any longer: batch and place.
        ended_sequences: Numbers of sequences that are over.
        restored: Sequences that go on here, with their states.
        paused: Requests whose readers are slow.
        resumed: Requests whose readers have caught up.
    """

    cancelled: list[tuple[int, int]]
    ended_sequences: list[int]
    restored: list[tuple[int, States]]
    paused: list[tuple[int, int]]
    resumed: list[tuple[int, int]]


def is_of_requests(message: bytes) -> bool:
    """Return whether a BatchRequest is a notice of requests that were sent before."""
    return message.startswith(_OF_REQUESTS_TAGS)


def is_notice(message: bytes) -> bool:
    """Return whether a BatchRequest is no batch; of the turns see above."""
    return message.startswith(_NOTICE_TAGS)


def parse_notice(message: bytes) -> Notice:
    """Read a BatchRequest that is no batch."""
    parsed = worker_pb2.BatchRequest.FromString(message)
    return Notice(
        cancelled=_places(parsed.cancelled),
        paused=_places(parsed.paused),
        resumed=_places(parsed.resumed),
        ended_sequences=list(parsed.ended_sequence),
        restored=[
            (one.sequence, tuple(State(tuple(s.shape), s.data) for s in one.state))
            for one in parsed.restored
        ],
    )


def _places(told: Iterable[worker_pb2.RequestPlace]) -> list[tuple[int, int]]:
    return [(one.batch, one.request) for one in told]


def states_message(states: Iterable[tuple[int, States]]) -> bytes:
    """Return a BatchResponse that only tells the states sequences have now."""
    message = worker_pb2.BatchResponse()
    for number, values in states:
        told = message.states.add(sequence=number)
        for shape, data in values:
            told.state.add(shape=shape, data=data)
    return message.SerializeToString()


def error_reply(code: int, text: str, is_answer: bool = False) -> bytes:  # noqa: FBT001, FBT002 - as BackendFailure has them
    """Return one entry of BatchResponse.reply that is an error.

    Args:
        code: A google.rpc.Code.
        text: For the client.
        is_answer: Whether the model itself answered so.
    """
    reply = _error(code, text, is_answer=is_answer)
    return worker_pb2.BatchResponse(reply=[reply]).SerializeToString()


def _error(code: int, text: str, *, is_answer: bool) -> worker_pb2.Reply:
    error = worker_pb2.ReplyError(code=code, message=text, is_answer=is_answer)
    return worker_pb2.Reply(error=error)


def _form(parameters: Mapping[str, inference_pb2.InferParameter]) -> OutputForm:
    """Return how an output is wanted; the router has checked the types."""
    classes = parameters.get("classification")
    count = 0
    if classes is not None:
        count = classes.int64_param or classes.uint64_param
    return OutputForm(class_count=count, region=_region(parameters))


def _region(
    parameters: Mapping[str, inference_pb2.InferParameter],
) -> SharedMemoryRegion | None:
    found = parameters.get(REGION_PARAMETER)
    if found is None:
        return None
    try:
        return SharedMemoryRegion.decode(found.string_param)
    except ValueError as error:
        text = f"parameter '{REGION_PARAMETER}' is the router's own"
        raise InvalidRequestError(text) from error


def _parameters(message: inference_pb2.ModelInferRequest) -> dict[str, Parameter]:
    found = {}
    for key, value in message.parameters.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is not None:
            found[key] = getattr(value, choice)
    return found


def _parse(request: bytes) -> inference_pb2.ModelInferRequest:
    try:
        return inference_pb2.ModelInferRequest.FromString(request)
    except DecodeError as error:
        text = f"the request is no ModelInferRequest: {error}"
        raise InvalidRequestError(text) from error
