"""Where a request's tensors come from and where its outputs go. Pure.

A worker knows two forms of a tensor: raw bytes in the request, and a stretch of
shared memory. Typed contents are written as raw bytes here, and the regions that
clients name are looked up.

Source: what Triton's gRPC frontend makes of a request; the messages are its own.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from protos import inference_pb2
from services.core.errors import InvalidRequestError
from services.core.shared_memory_region import REGION_PARAMETER, SharedMemoryRegion
from services.router.request_split import Raw
from services.router.shared_memory_registry import SharedMemoryRegistry
from services.router.typed_contents import raw_contents

Request: TypeAlias = inference_pb2.ModelInferRequest
InputTensor: TypeAlias = inference_pb2.ModelInferRequest.InferInputTensor
OutputTensor: TypeAlias = inference_pb2.ModelInferRequest.InferRequestedOutputTensor
Content: TypeAlias = bytes | memoryview | SharedMemoryRegion

_REGION: Final = "shared_memory_region"
_OFFSET: Final = "shared_memory_offset"
_BYTE_SIZE: Final = "shared_memory_byte_size"
_CLASSIFICATION: Final = "classification"
_MOST_CLASSES: Final = 2**32 - 1
_INTEGERS: Final = ("int64_param", "uint64_param")


class Sources(NamedTuple):
    """A request in the form that workers know.

    Attributes:
        body: The serialized request.
        contents: Of each input.
        regions: The clients' regions that its tensors lie in, by name.
    """

    body: bytes
    contents: list[Content]
    regions: tuple[str, ...] = ()


def normal_sources(
    request: Request,
    raws: Sequence[Raw],
    body: bytes,
    registry: SharedMemoryRegistry,
    *,
    is_step: bool = False,
) -> Sources:
    """Return ``body`` in the form that workers know; the same bytes if it has it.

    Args:
        request: Parsed from ``body``, without raw contents; changed.
        raws: The raw contents.
        body: As the client sent it.
        registry: Knows the regions.
        is_step: An ensemble sends it, from a request that was in this form.

    Raises:
        InvalidRequestError: an input without contents, with several, or contents
            for no input; a parameter of a wrong type; a region too small.
        ModelNotFoundError: an unknown region.
    """
    regions = [_region(each, registry, is_step=is_step) for each in request.inputs]
    is_normal = not any(regions)
    names = {_name(t) for t, r in zip(request.inputs, regions, strict=True) if r}
    contents = _contents(request, raws, regions)
    if contents and not raws:
        is_normal = False
    for output in request.outputs:
        if output.parameters:
            region = _region(output, registry, is_step=is_step)
            _check_classification(output, region)
            if region is not None:
                is_normal = False
                names.add(_name(output))
            _write(output, region)
    if is_normal:
        return Sources(body, contents)
    for tensor, region in zip(request.inputs, regions, strict=True):
        tensor.ClearField("contents")
        _write(tensor, region)
    request.raw_input_contents.extend(
        bytes(one) for one in contents if not isinstance(one, SharedMemoryRegion)
    )
    used = tuple(sorted(name for name in names if name))
    return Sources(request.SerializeToString(), contents, used)


def _contents(
    request: Request,
    raws: Sequence[Raw],
    regions: list[SharedMemoryRegion | None],
) -> list[Content]:
    """Return the contents of each input."""
    model = request.model_name
    contents: list[Content] = []
    used = 0
    for tensor, region in zip(request.inputs, regions, strict=True):
        if region is not None:
            if tensor.HasField("contents"):
                message = (
                    "unexpected 'content' provided when using shared memory for input "
                    f"tensor '{tensor.name}' for model '{model}'"
                )
                raise InvalidRequestError(message)
            contents.append(region)
        elif raws and tensor.HasField("contents"):
            message = (
                "contents field must not be specified when using raw_input_contents "
                f"for '{tensor.name}' for model '{model}'"
            )
            raise InvalidRequestError(message)
        elif not raws:
            contents.append(raw_contents(tensor, model))
        elif used < len(raws):
            contents.append(raws[used])
            used += 1
        else:
            message = (
                f"unable to find data for input tensor '{tensor.name}' for model "
                f"'{model}' in request."
            )
            raise InvalidRequestError(message)
    if used < len(raws):
        message = (
            f"expected {used} raw_input_contents for model '{model}', one for each "
            f"input, got {len(raws)}"
        )
        raise InvalidRequestError(message)
    return contents


def _name(tensor: InputTensor | OutputTensor) -> str:
    """Return the region that a tensor names; "" for a step of an ensemble."""
    parameters = tensor.parameters
    return parameters[_REGION].string_param if _REGION in parameters else ""


def _region(
    tensor: InputTensor | OutputTensor,
    registry: SharedMemoryRegistry,
    *,
    is_step: bool,
) -> SharedMemoryRegion | None:
    """Return where a tensor is in shared memory, None if it is not there."""
    parameters = tensor.parameters
    if not parameters:
        return None
    if REGION_PARAMETER in parameters:
        if is_step:
            return SharedMemoryRegion.decode(parameters[REGION_PARAMETER].string_param)
        message = f"parameter '{REGION_PARAMETER}' is reserved"
        raise InvalidRequestError(message)
    if _REGION not in parameters:
        for key in (_OFFSET, _BYTE_SIZE):
            if key in parameters:
                message = (
                    f"'{key}' can not be specified without '{_REGION}' parameter for "
                    f"tensor '{tensor.name}'"
                )
                raise InvalidRequestError(message)
        return None
    if parameters[_REGION].WhichOneof("parameter_choice") != "string_param":
        raise _wrong_type(_REGION, tensor, "string_param")
    if _BYTE_SIZE not in parameters:
        message = (
            f"'{_BYTE_SIZE}' must be specified along with '{_REGION}' parameter for "
            f"tensor '{tensor.name}'"
        )
        raise InvalidRequestError(message)
    return registry.resolve(
        parameters[_REGION].string_param,
        _integer(_OFFSET, tensor) if _OFFSET in parameters else 0,
        _integer(_BYTE_SIZE, tensor),
    )


def _integer(key: str, tensor: InputTensor | OutputTensor) -> int:
    choice = tensor.parameters[key].WhichOneof("parameter_choice")
    if choice not in _INTEGERS:
        raise _wrong_type(key, tensor, "int64_param")
    value: int = getattr(tensor.parameters[key], choice)
    return value


def _wrong_type(
    key: str, tensor: InputTensor | OutputTensor, expected: str
) -> InvalidRequestError:
    return InvalidRequestError(
        f"invalid value type for '{key}' parameter for tensor '{tensor.name}', "
        f"expected {expected}."
    )


def _check_classification(
    output: OutputTensor, region: SharedMemoryRegion | None
) -> None:
    if _CLASSIFICATION not in output.parameters:
        return
    choice = output.parameters[_CLASSIFICATION].WhichOneof("parameter_choice")
    if choice not in _INTEGERS:
        message = (
            f"invalid value type for '{_CLASSIFICATION}' parameter, expected "
            "int64_param"
        )
        raise InvalidRequestError(message)
    if not 0 <= _integer(_CLASSIFICATION, output) <= _MOST_CLASSES:
        message = f"invalid value for '{_CLASSIFICATION}' parameter, expected >= 0"
        raise InvalidRequestError(message)
    if region is not None:
        message = f"output can't set both '{_REGION}' and '{_CLASSIFICATION}'"
        raise InvalidRequestError(message)


def _write(
    tensor: InputTensor | OutputTensor, region: SharedMemoryRegion | None
) -> None:
    """Say in ``tensor`` where it is, in the words that workers know."""
    if region is None:
        return
    for key in (_REGION, _OFFSET, _BYTE_SIZE):
        if key in tensor.parameters:
            del tensor.parameters[key]
    tensor.parameters[REGION_PARAMETER].string_param = region.encode()
