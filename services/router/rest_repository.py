"""Loading and unloading over REST: the JSON of the requests. Pure.

Source: Triton's model repository extension, and what its HTTP server answers: a
parameter that it does not know ends the load, a body of an unload that is no JSON is
as good as none.
"""

import base64
import binascii
from typing import Final

from protos import inference_pb2 as pb
from services.core.errors import InternalError
from services.router import rest_json

_CONFIG: Final = "config"
_FILE_PREFIX: Final = "file:"
_UNLOAD_DEPENDENTS: Final = "unload_dependents"


def read_load_request(
    body: bytes, model: str, repository: str
) -> pb.RepositoryModelLoadRequest:
    """Read POST /v2/repository/models/NAME/load, whose body may be empty.

    Files come in base64 and leave as bytes.

    Raises:
        InternalError: not JSON, an unknown parameter, or a value of another type.
    """
    request = pb.RepositoryModelLoadRequest(
        model_name=model, repository_name=repository
    )
    document = rest_json.parse(body) if body else {}
    parameters = rest_json.optional_member(document, "parameters")
    if parameters is None:
        return request
    for name, value in rest_json.record(parameters, "parameters").items():
        key = rest_json.unicode_text(name)
        if key == _CONFIG:
            text = rest_json.string(value, key)
            request.parameters[key].string_param = text
        elif key.startswith(_FILE_PREFIX):
            text = rest_json.string(value, key)
            request.parameters[key].bytes_param = _file(text, key)
        else:
            raise InternalError("unexpected error on creating Triton parameter")
    return request


def read_unload_request(
    body: bytes, model: str, repository: str
) -> pb.RepositoryModelUnloadRequest:
    """Read POST /v2/repository/models/NAME/unload, whose body may be anything.

    Raises:
        InternalError: ``unload_dependents`` is there and no boolean.
    """
    request = pb.RepositoryModelUnloadRequest(
        model_name=model, repository_name=repository
    )
    try:
        document = rest_json.parse(body) if body else {}
    except InternalError:
        return request
    parameters = rest_json.optional_member(document, "parameters")
    value = rest_json.optional_member(parameters, _UNLOAD_DEPENDENTS)
    if value is not None:
        flag = rest_json.boolean(value, _UNLOAD_DEPENDENTS)
        request.parameters[_UNLOAD_DEPENDENTS].bool_param = flag
    return request


def _file(text: str, key: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InternalError(
            f"Unable to parse '{key}': the contents are not base64"
        ) from None
