"""Parameters of REST requests and responses, between JSON and protobuf. Pure.

Source: the parameters, sequence and schedule policy extensions of Triton's
protocol. What a parameter may be called and hold is checked where it arrives.
"""

from collections.abc import Mapping, MutableMapping
from typing import Final

from protos import inference_pb2 as pb
from services.core.errors import InvalidRequestError
from services.router import rest_json

BINARY_DATA_OUTPUT: Final = "binary_data_output"

_MIN_INT64: Final = -(2**63)
_RESERVED_PREFIX: Final = "triton_"
_HEADERS: Final = "headers"
_UNSIGNED: Final = frozenset(("priority", "timeout"))
_BOOLEAN: Final = frozenset(("sequence_start", "sequence_end"))


def read_request_parameters(
    parameters: Mapping[str, object],
    target: MutableMapping[str, pb.InferParameter],
) -> bool:
    """Add ``parameters`` to those of a request; return ``binary_data_output``.

    Raises:
        InternalError: a parameter of the protocol has a value of another type.
        InvalidRequestError: a reserved name, or a value that is no bool, number
            or string.
    """
    is_binary = False
    for name, value in parameters.items():
        if name == BINARY_DATA_OUTPUT:
            is_binary = rest_json.boolean(value, name)
            continue
        if name.startswith(_RESERVED_PREFIX):
            message = (
                f"parameter keys starting with '{_RESERVED_PREFIX}' are reserved for "
                "Triton usage and should not be specified."
            )
            raise InvalidRequestError(message)
        if name == _HEADERS:
            message = f"parameter '{_HEADERS}' is reserved and may not be specified"
            raise InvalidRequestError(message)
        if name in _UNSIGNED or (name == "sequence_id" and not isinstance(value, str)):
            rest_json.unsigned(value, name)
        elif name in _BOOLEAN:
            rest_json.boolean(value, name)
        set_parameter(target[rest_json.unicode_text(name)], name, value)
    return is_binary


def set_parameter(parameter: pb.InferParameter, name: str, value: object) -> None:
    """Give ``parameter`` the value that JSON has.

    Raises:
        InvalidRequestError: it is no bool, string or number that fits.
    """
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, str):
        parameter.string_param = rest_json.unicode_text(value)
    elif isinstance(value, float):
        parameter.double_param = value
    elif isinstance(value, int) and _MIN_INT64 <= value <= rest_json.MAX_INT64:
        parameter.int64_param = value
    elif isinstance(value, int) and 0 <= value <= rest_json.MAX_UINT64:
        parameter.uint64_param = value
    else:
        message = (
            f"parameter '{name}' has invalid type. It should be either 'int', 'bool', "
            "or 'string'."
        )
        raise InvalidRequestError(message)


def json_parameters(
    parameters: Mapping[str, pb.InferParameter],
) -> dict[str, bool | int | float | str]:
    """Return the parameters of a response as JSON has them."""
    return {name: _value(parameter) for name, parameter in sorted(parameters.items())}


def _value(parameter: pb.InferParameter) -> bool | int | float | str:
    field = parameter.WhichOneof("parameter_choice") or "string_param"
    value: bool | int | float | str = getattr(parameter, field)
    return value
