"""Whether a request may run.

Every rule of the protocol and of the model's configuration is checked here, once,
before the request costs anyone anything.

Source: the order of the checks and the messages are those of Triton's gRPC
frontend and of the normalisation of its requests, as the recorded answers of the
real one show them. Triton walks the inputs of a request from the last to the
first, so with two wrong inputs it names the last; so do we.
"""

from collections.abc import Hashable, Sequence
from math import prod
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from protos import inference_pb2
from services.core import byte_tensor
from services.core.datatype import DataType
from services.core.errors import (
    InternalError,
    InvalidRequestError,
)
from services.core.model_config import ModelConfig, ModelInput
from services.router.learned_headers import LearnedHeaders, Verdict
from services.router.request_timing import TIMING_PARAMETER
from services.router.route_table import Route, RouteTable
from services.router.shared_memory_registry import SharedMemoryRegistry
from services.router.tensor_sources import Content, normal_sources

Request: TypeAlias = inference_pb2.ModelInferRequest
InputTensor: TypeAlias = inference_pb2.ModelInferRequest.InferInputTensor

_NO_SHARED_MEMORY: Final = SharedMemoryRegistry()
_RESERVED_PREFIX: Final = "triton_"
_RESERVED_ALLOWED: Final = ("triton_enable_empty_final_response",)
_PARAMETER_TYPES: Final = {
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param", "uint64_param"),
    TIMING_PARAMETER: ("bool_param",),
}
_BATCH_NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch "
    "dimension to be prepended to each input shape. If you want to specify the full "
    "shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on "
    "max_batch_size."
)


class Admission:
    """The gate of one router: learned headers first, the full path behind."""

    __slots__ = ("_learned", "_registry", "table")

    def __init__(
        self,
        table: RouteTable | None = None,
        registry: SharedMemoryRegistry = _NO_SHARED_MEMORY,
    ) -> None:
        """Admit by ``table``; ``registry`` has the clients' shared memory."""
        self.table = table or RouteTable()
        self._registry = registry
        self._learned = LearnedHeaders()

    def apply(self, table: RouteTable) -> None:
        """Admit by ``table`` from now on."""
        self.table = table
        self._learned.clear()

    def admit(self, body: bytes) -> tuple[Verdict, bytes]:
        """Return the verdict on a serialized ModelInferRequest, and its bytes.

        The bytes are ``body`` itself unless tensors came as typed contents or in
        shared memory; they then are the same request in the form workers know.

        Raises:
            ServingError: the request may not run; the message says why.
        """
        verdict = self._learned.find(body)
        if verdict is not None:
            return verdict, body
        verdict, normal = admit_in_full(body, self.table, self._registry)
        if normal is body:
            self._learned.learn(body, verdict)
        return verdict, normal

    def admit_to(self, route: Route, body: bytes) -> tuple[Verdict, bytes]:
        """Return the verdict as ``admit`` does, for that very route.

        For the steps of an ensemble: a request that has begun ends on the versions
        it began with.

        Raises:
            ServingError: the request may not run; the message says why.
        """
        verdict = self._learned.find(body)
        if verdict is not None and verdict.route.generation == route.generation:
            return verdict, body
        current = self.table.models.get(route.model, {}).get(route.version)
        verdict, normal = admit_in_full(body, self.table, self._registry, route=route)
        is_current = current is not None and current.generation == route.generation
        if normal is body and is_current:
            self._learned.learn(body, verdict)
        return verdict, normal


def admit_in_full(
    body: bytes,
    table: RouteTable,
    registry: SharedMemoryRegistry = _NO_SHARED_MEMORY,
    *,
    route: Route | None = None,
) -> tuple[Verdict, bytes]:
    """Parse and validate a request without any shortcut; as ``Admission.admit``.

    ``route`` is looked up unless it is given, for the step of an ensemble.
    """
    try:
        request = Request.FromString(body)
    except DecodeError as error:
        message = "Unable to parse request"
        raise InternalError(message) from error
    is_step = route is not None
    route = route or table.find(request.model_name, request.model_version)
    _check_parameters(request)
    body, contents = normal_sources(request, body, registry, is_step=is_step)
    config = route.config
    inputs = {tensor.name: tensor for tensor in request.inputs}
    where = _request_id(request)
    if len(inputs) < len(request.inputs):
        raise InvalidRequestError(_repeated_input(request))
    _check_outputs(request, config)
    _check_input_names(inputs, config, where)
    rows = _batch_size(inputs, config, where)
    for tensor in reversed(request.inputs):
        _check_input(tensor, _declared(config, tensor.name), config, where)
    if rows > max(config.max_batch_size, 1):
        message = (
            f"{where}inference request batch-size must be <= "
            f"{config.max_batch_size} for '{config.name}'"
        )
        raise InvalidRequestError(message)
    for tensor, content in reversed(list(zip(request.inputs, contents, strict=True))):
        _check_size(tensor, content, config, where)
    if rows < 1 <= config.max_batch_size and request.inputs:
        message = (
            f"{where}inference request batch-size must be >= 1 for '{config.name}'"
        )
        raise InvalidRequestError(message)
    learnable = all(tensor.datatype != "BYTES" for tensor in request.inputs)
    verdict = Verdict(
        route=route,
        rows=max(rows, 1),
        shape_key=_shape_key(request.inputs, route),
        learnable=learnable,
        wants_timing=request.parameters[TIMING_PARAMETER].bool_param
        if TIMING_PARAMETER in request.parameters
        else False,
        priority=_natural(request, "priority"),
        timeout_ns=_natural(request, "timeout") * 1000,
    )
    return verdict, body


def _request_id(request: Request) -> str:
    return f"[request id: {request.id or '<id_unknown>'}] "


def _repeated_input(request: Request) -> str:
    names = [tensor.name for tensor in request.inputs]
    repeated = next(name for name in names if names.count(name) > 1)
    return f"input '{repeated}' already exists in request"


def _check_parameters(request: Request) -> None:
    for name, value in request.parameters.items():
        types = _PARAMETER_TYPES.get(name)
        if types is not None and value.WhichOneof("parameter_choice") not in types:
            message = f"invalid value type for '{name}' parameter, expected {types[0]}."
            raise InvalidRequestError(message)
        if name.startswith(_RESERVED_PREFIX) and name not in _RESERVED_ALLOWED:
            message = (
                f"parameter keys starting with '{_RESERVED_PREFIX}' are reserved for "
                "Triton usage. Only the following keys starting with "
                f"'{_RESERVED_PREFIX}' are allowed: {' '.join(_RESERVED_ALLOWED)}"
            )
            raise InvalidRequestError(message)


def _natural(request: Request, name: str) -> int:
    """Return an integer parameter; 0 if it is missing or negative.

    Triton reads a negative number as a huge one, which no level and no timeout
    admits: as if it were not there.
    """
    if name not in request.parameters:
        return 0
    value = request.parameters[name]
    return max(value.int64_param, value.uint64_param, 0)


def _check_outputs(request: Request, config: ModelConfig) -> None:
    declared = {output.name for output in config.outputs}
    for output in request.outputs:
        if output.name not in declared:
            message = (
                f"unexpected inference output '{output.name}' for model '{config.name}'"
            )
            raise InvalidRequestError(message)


def _check_input_names(
    inputs: dict[str, InputTensor], config: ModelConfig, where: str
) -> None:
    required = [tensor.name for tensor in config.client_inputs if not tensor.optional]
    missing = [name for name in required if name not in inputs]
    count_is_wrong = not len(required) <= len(inputs) <= len(config.client_inputs)
    if count_is_wrong or (missing and set(inputs) <= _names(config)):
        fewest, most = len(required), len(config.client_inputs)
        expected = (
            f"{fewest} inputs"
            if fewest == most
            else f"number of inputs between {fewest} and {most}"
        )
        message = (
            f"{where}expected {expected} but got {len(inputs)} inputs for "
            f"model '{config.name}'. Got input(s) [{_quoted(inputs)}], but missing "
            f"required input(s) [{_quoted(missing)}]. Please provide all required "
            "input(s)."
        )
        raise InvalidRequestError(message)


def _names(config: ModelConfig) -> set[str]:
    return {tensor.name for tensor in config.client_inputs}


def _quoted(names: Sequence[str] | dict[str, InputTensor]) -> str:
    return ",".join(f"'{name}'" for name in names)


def _declared(config: ModelConfig, name: str) -> ModelInput:
    for tensor in config.client_inputs:
        if tensor.name == name:
            return tensor
    message = f"unexpected inference input '{name}' for model '{config.name}'"
    raise InvalidRequestError(message)


def _batch_size(inputs: dict[str, InputTensor], config: ModelConfig, where: str) -> int:
    """Return the rows all inputs agree on; 0 for a model that does not batch."""
    if config.max_batch_size == 0:
        return 0
    batch_size = None
    for name, tensor in reversed(inputs.items()):
        if not tensor.shape:
            message = (
                f"{where}input '{name}' has no shape but model requires batch "
                f"dimension for '{config.name}'"
            )
            raise InvalidRequestError(message)
        if batch_size is None:
            batch_size = tensor.shape[0]
        elif tensor.shape[0] != batch_size:
            message = (
                f"{where}input '{name}' batch size does not match other inputs for "
                f"'{config.name}'"
            )
            raise InvalidRequestError(message)
    return batch_size or 0


def _check_input(
    tensor: InputTensor, declared: ModelInput, config: ModelConfig, where: str
) -> None:
    if tensor.datatype != declared.datatype.value:
        known = tensor.datatype in DataType.__members__
        sent = tensor.datatype if known else "<invalid>"
        message = (
            f"{where}inference input '{tensor.name}' data-type is '{sent}', but "
            f"model '{config.name}' expects '{declared.datatype.value}'"
        )
        raise InvalidRequestError(message)
    batches = config.max_batch_size > 0
    shape = tuple(tensor.shape)
    dims = shape[1:] if batches else shape
    fits = len(dims) == len(declared.dims) and all(
        sent >= 0 and wanted in (sent, -1)
        for sent, wanted in zip(dims, declared.dims, strict=True)
    )
    if fits and (not batches or shape[0] >= 0):
        return
    expected = (-1, *declared.dims) if batches else declared.dims
    message = (
        f"{where}unexpected shape for input '{tensor.name}' for model "
        f"'{config.name}'. Expected {_shape_text(expected)}, got "
        f"{_shape_text(shape)}. {_BATCH_NOTE if batches else ''}"
    )
    raise InvalidRequestError(message)


def _shape_text(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _check_size(
    tensor: InputTensor, content: Content, config: ModelConfig, where: str
) -> None:
    model, shape = config.name, tuple(tensor.shape)
    if config.max_batch_size > 0:
        # A batch dimension of zero is read as one row, whose bytes are missing.
        shape = (max(shape[0], 1), *shape[1:])
    elements = prod(shape)
    datatype = DataType.from_protocol(tensor.datatype)
    if datatype.byte_size is None:
        # Strings in shared memory are looked at by the worker, who maps it.
        if isinstance(content, bytes):
            byte_tensor.validate(
                content,
                elements,
                tensor_name=tensor.name,
                model_name=model,
                prefix=where,
            )
        return
    expected = elements * datatype.byte_size
    found = len(content) if isinstance(content, bytes) else content.byte_size
    if expected != found:
        message = (
            f"{where}input byte size mismatch for input '{tensor.name}' for model "
            f"'{model}'. Expected {expected}, got {found}"
        )
        raise InvalidRequestError(message)


def _shape_key(tensors: Sequence[InputTensor], route: Route) -> Hashable:
    """Return what must be equal within a batch: each input's dims, by name.

    A dimension that is padded counts as what it is padded to.
    """
    ragged = {
        tensor.name for tensor in route.config.inputs if tensor.allow_ragged_batch
    }
    padding = route.config.padding
    key = []
    for tensor in tensors:
        dims = list(tensor.shape[1:])
        if padding is not None:
            for dim in padding.padded_dims(tensor.name):
                dims[dim] = padding.batch_key(dims[dim])
        if tensor.name not in ragged:
            key.append((tensor.name, tuple(dims)))
    return tuple(sorted(key))
