"""Whether a request may run.

Every rule of the protocol and of the model's configuration is checked here, once,
before the request costs anyone anything.

Source: the order of the checks and the messages are those of Triton's gRPC
frontend and of the normalisation of its requests, as the recorded answers of the
real one show them.
"""

from typing import Final, TypeAlias

from protos import inference_pb2
from services.core.errors import (
    InvalidRequestError,
)
from services.core.model_config import ModelConfig
from services.core.trace_token import TRACE_PARAMETER
from services.router.input_checks import check_inputs, shape_key
from services.router.learned_headers import LearnedHeaders, Verdict
from services.router.request_split import split_request
from services.router.request_timing import TIMING_PARAMETER
from services.router.route_table import Route, RouteTable
from services.router.shared_memory_registry import SharedMemoryRegistry
from services.router.tensor_sources import normal_sources

Request: TypeAlias = inference_pb2.ModelInferRequest

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


class Admission:
    """The gate of one router: learned headers first, the full path behind.

    Attributes:
        recognise: Returns the verdict on a body whose header was seen before, else
            None; what ``admit`` does first, without its call.
    """

    __slots__ = ("_learned", "_registry", "recognise", "table")

    def __init__(
        self,
        table: RouteTable | None = None,
        registry: SharedMemoryRegistry = _NO_SHARED_MEMORY,
    ) -> None:
        """Admit by ``table``; ``registry`` has the clients' shared memory."""
        self.table = table or RouteTable()
        self._registry = registry
        self._learned = LearnedHeaders()
        self.recognise = self._learned.find

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
        return (verdict, body) if verdict is not None else self.admit_anew(body)

    def admit_anew(self, body: bytes) -> tuple[Verdict, bytes]:
        """Do as ``admit`` does with a body that is not recognised."""
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
    request, raws = split_request(body)
    is_step = route is not None
    route = route or table.find(request.model_name, request.model_version)
    _check_parameters(request)
    body, contents, regions = normal_sources(
        request, raws, body, registry, is_step=is_step
    )
    config = route.config
    where = f"[request id: {request.id or '<id_unknown>'}] "
    _check_outputs(request, config)
    rows = check_inputs(request.inputs, contents, config, where)
    wants_timing = (
        TIMING_PARAMETER in request.parameters
        and request.parameters[TIMING_PARAMETER].bool_param
    )
    asked_by = _text(request, TRACE_PARAMETER)
    # Who is part of a trace has a header that nobody else has.
    learnable = not asked_by and all(
        tensor.datatype != "BYTES" for tensor in request.inputs
    )
    verdict = Verdict(
        route=route,
        rows=rows,
        shape_key=shape_key(request.inputs, config),
        learnable=learnable,
        is_special=wants_timing or bool(asked_by),
        wants_timing=wants_timing,
        asked_by=asked_by,
        priority=_natural(request, "priority"),
        timeout_ns=_natural(request, "timeout") * 1000,
        regions=regions,
    )
    return verdict, body


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


def _text(request: Request, name: str) -> str:
    """Return a parameter that is a string; "" if it is missing or something else."""
    parameters = request.parameters
    return parameters[name].string_param if name in parameters else ""


def _check_outputs(request: Request, config: ModelConfig) -> None:
    declared = {output.name for output in config.outputs}
    for output in request.outputs:
        if output.name not in declared:
            message = (
                f"unexpected inference output '{output.name}' for model '{config.name}'"
            )
            raise InvalidRequestError(message)
