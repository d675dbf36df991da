"""The JSON of a REST inference request, read into protobuf. Pure.

Behind the JSON come the raw tensors that it announces by their sizes. They are
not copied here: they are slices of the one body, joined at the end.

Source: KServe V2, "Inference Request JSON Object", and Triton's binary tensor
data, classification and shared memory extensions.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from protos import inference_pb2 as pb
from services.core.datatype import DataType
from services.core.errors import InternalError, InvalidRequestError
from services.core.wire_format import length_prefix
from services.router import rest_json, rest_parameters, rest_tensor
from services.router.rest_plan import ModelView, Piece, ReplyPlan, RestInfer

InputTensor: TypeAlias = pb.ModelInferRequest.InferInputTensor
OutputTensor: TypeAlias = pb.ModelInferRequest.InferRequestedOutputTensor

_INPUTS_FIELD: Final = 5
_RAW_FIELD: Final = 7
_MOST_HEADS: Final = 1024
_LONGEST_REMEMBERED_HEAD: Final = 128
_SHARED_MEMORY: Final = "shared_memory_region"
_SHARED_MEMORY_NUMBERS: Final = ("shared_memory_byte_size", "shared_memory_offset")
# Of the three places a tensor can be in, all but one.
_ABSENT_SOURCES: Final = 2
_ONE_SOURCE: Final = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in "
    "'parameters', 'shared_memory_region' in 'parameters'."
)


class InferDocument:
    """One body being read: its document piece by piece, its tail from the front."""

    __slots__ = ("_max_input_bytes", "_model", "_offset", "_tail")

    def __init__(
        self, *, model: ModelView, tail: memoryview, max_input_bytes: int
    ) -> None:
        self._model = model
        self._tail = tail
        self._offset = 0
        self._max_input_bytes = max_input_bytes

    def request(self, document: object, encoding: str) -> RestInfer:
        """Return the request that ``document`` describes."""
        model = self._model
        head = pb.ModelInferRequest(model_name=model.name, model_version=model.version)
        request_id = rest_json.optional_member(document, "id")
        parameters = rest_json.optional_member(document, "parameters")
        binary_by_default = False
        inputs = rest_json.array(rest_json.member(document, "inputs"), "inputs")
        if request_id is not None:
            head.id = rest_json.string(request_id, "id")
        if parameters is not None:
            binary_by_default = rest_parameters.read_request_parameters(
                rest_json.record(parameters, "parameters"), head.parameters
            )
        tensors: list[Piece] = []
        raws: list[Piece] = []
        for tensor in inputs:
            self._read_input(tensor, tensors, raws)
        if self._offset != len(self._tail):
            message = f"unexpected additional input data for model '{model.name}'"
            raise InvalidRequestError(message)
        outputs = pb.ModelInferRequest()
        plan = self._read_outputs(document, outputs, binary_by_default, encoding)
        pieces = (
            head.SerializeToString(),
            *tensors,
            outputs.SerializeToString(),
            *raws,
        )
        return RestInfer(request=b"".join(pieces), reply=plan)

    def _read_input(
        self, tensor: object, heads: list[Piece], raws: list[Piece]
    ) -> None:
        """Add the head of one input, and its contents if they are in the body."""
        name = rest_json.string(rest_json.member(tensor, "name"), "name")
        protocol_type = rest_json.member(tensor, "datatype")
        datatype = _datatype(rest_json.string(protocol_type, "datatype"), name)
        dims = rest_json.array(rest_json.member(tensor, "shape"), "shape")
        shape = tuple(rest_json.unsigned(dim, "shape") for dim in dims)
        given = rest_json.optional_member(tensor, "parameters")
        parameters = {} if given is None else rest_json.record(given, "parameters")
        size = parameters.get("binary_data_size")
        data = rest_json.optional_member(tensor, "data")
        region = parameters.get(_SHARED_MEMORY)
        _check_one_source(data, size, region)
        if region is not None:
            heads.append(_shared_memory_head(name, datatype, shape, parameters))
            return
        heads.append(_input_head(name, datatype, shape))
        if size is not None:
            raw: Piece = self._take(rest_json.unsigned(size, "binary_data_size"), name)
        else:
            raw = rest_tensor.raw_bytes(
                data,
                datatype,
                math.prod(shape),
                tensor_name=name,
                max_bytes=self._max_input_bytes,
            )
        raws += (length_prefix(_RAW_FIELD, len(raw)), raw)

    def _take(self, size: int, name: str) -> memoryview:
        """Return the next ``size`` bytes behind the document."""
        missing = size - (len(self._tail) - self._offset)
        if missing > 0:
            message = (
                f"unexpected size for input '{name}', expecting {missing} additional "
                f"bytes for model '{self._model.name}'"
            )
            raise InvalidRequestError(message)
        start = self._offset
        self._offset += size
        return self._tail[start : self._offset]

    def _read_outputs(
        self,
        document: object,
        request: pb.ModelInferRequest,
        binary_by_default: bool,  # noqa: FBT001
        encoding: str,
    ) -> ReplyPlan:
        """Add the requested outputs to ``request``; return the plan."""
        wanted = rest_json.optional_member(document, "outputs")
        outputs = () if wanted is None else rest_json.array(wanted, "outputs")
        declared = {output.name for output in self._model.config.outputs}
        binary: dict[str, bool] = {}
        in_shared_memory: set[str] = set()
        for output in outputs:
            name = rest_json.string(rest_json.member(output, "name"), "name")
            if name not in declared:
                message = (
                    f"unexpected inference output '{name}' for model "
                    f"'{self._model.name}'"
                )
                raise InvalidRequestError(message)
            tensor = request.outputs.add(name=name)
            given = rest_json.optional_member(output, "parameters")
            if given is None:
                continue
            parameters = rest_json.record(given, "parameters")
            _read_output_parameters(parameters, tensor)
            if "binary_data" in parameters:
                binary[name] = rest_json.boolean(
                    parameters["binary_data"], "binary_data"
                )
            if _SHARED_MEMORY in parameters:
                in_shared_memory.add(name)
        return ReplyPlan(
            binary_by_default=binary_by_default,
            binary=binary,
            in_shared_memory=frozenset(in_shared_memory),
            encoding=encoding,
        )


def _read_output_parameters(
    parameters: Mapping[str, object],
    tensor: OutputTensor,
) -> None:
    classes = parameters.get("classification")
    if classes is not None:
        count = rest_json.unsigned(classes, "classification", verb="set")
        if count:
            rest_parameters.set_parameter(
                tensor.parameters["classification"], "classification", count
            )
    _copy_shared_memory(parameters, tensor)


def _copy_shared_memory(
    parameters: Mapping[str, object],
    tensor: InputTensor | OutputTensor,
) -> None:
    region = parameters.get(_SHARED_MEMORY)
    if region is None:
        return
    values: dict[str, object] = {
        _SHARED_MEMORY: rest_json.string(region, _SHARED_MEMORY)
    }
    for key in _SHARED_MEMORY_NUMBERS:
        if key in parameters:
            values[key] = rest_json.unsigned(parameters[key], key)
    for key, value in values.items():
        rest_parameters.set_parameter(tensor.parameters[key], key, value)


def _check_one_source(data: object, size: object, region: object) -> None:
    if (data is None) + (size is None) + (region is None) == _ABSENT_SOURCES:
        return
    sources = {
        "'data'": data,
        "'binary_data_size' in 'parameters'": size,
        "'shared_memory_region' in 'parameters'": region,
    }
    found = [name for name, value in sources.items() if value is not None]
    if not found:
        raise InvalidRequestError(f"{_ONE_SOURCE} But no field is set")
    raise InvalidRequestError(f"{_ONE_SOURCE} But {' and '.join(found)} are set")


def _datatype(protocol_name: str, tensor_name: str) -> DataType:
    found = DataType.__members__.get(protocol_name)
    if found is None:
        raise InvalidRequestError(f"invalid datatype for input {tensor_name}")
    return found


_heads: dict[tuple[str, DataType, tuple[int, ...]], bytes] = {}


def _input_head(name: str, datatype: DataType, shape: tuple[int, ...]) -> bytes:
    """Return one input of the request, serialized; remembered, since they repeat."""
    key = (name, datatype, shape)
    head = _heads.get(key)
    if head is None:
        head = _serialized(_input_tensor(name, datatype, shape))
        if len(_heads) < _MOST_HEADS and len(head) < _LONGEST_REMEMBERED_HEAD:
            _heads[key] = head
    return head


def _shared_memory_head(
    name: str,
    datatype: DataType,
    shape: tuple[int, ...],
    parameters: Mapping[str, object],
) -> bytes:
    tensor = _input_tensor(name, datatype, shape)
    _copy_shared_memory(parameters, tensor)
    return _serialized(tensor)


def _input_tensor(name: str, datatype: DataType, shape: Sequence[int]) -> InputTensor:
    if any(dim > rest_json.MAX_INT64 for dim in shape):
        raise InternalError("Unable to parse 'shape': a dimension exceeds 2^63 - 1")
    return InputTensor(name=name, datatype=datatype.value, shape=shape)


def _serialized(tensor: InputTensor) -> bytes:
    message = tensor.SerializeToString()
    return length_prefix(_INPUTS_FIELD, len(message)) + message
