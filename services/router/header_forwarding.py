"""Headers of a request that reach the model as parameters. Pure.

Source: Triton's ``--http-header-forward-pattern`` and
``--grpc-header-forward-pattern``, and its messages.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from protos import inference_pb2 as pb
from services.core.errors import InvalidRequestError
from services.core.header_pattern import header_pattern
from services.core.wire_format import WireFormatError, skip_field

# Made by the gateway or the protocol, not by the client.
_NOT_FORWARDED: Final = re.compile(
    r"x-envoy-.*|x-content-length|x-request-id|x-forwarded-proto|te|content-type"
    r"|grpc-.*|:.*|nereid-gateway"
)
_RESERVED: Final = frozenset(
    (
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
    )
)
_RESERVED_PREFIX: Final = "triton_"
# What precedes the inputs: name, version, id and parameters.
_PARAMETERS_FIELD: Final = 4


class HeaderForwarding:
    """Adds the headers that match a pattern to requests."""

    __slots__ = ("_pattern",)

    def __init__(self, pattern: str) -> None:
        """Forward the headers in whose names ``pattern`` is found; "" for none."""
        self._pattern = header_pattern(pattern) if pattern else None

    @property
    def is_on(self) -> bool:
        """Whether any header is forwarded."""
        return self._pattern is not None

    def forward(self, headers: Mapping[str, str | bytes], body: bytes) -> bytes:
        """Return a serialized ModelInferRequest with its headers as parameters.

        Args:
            headers: Of the request, by name; values that are no text stay out.
            body: The request; it may be malformed, and is then left as it is.

        Raises:
            InvalidRequestError: a header has the name of a parameter with a
                meaning of its own.
        """
        found = self._matching(headers)
        if not found:
            return body
        message = pb.ModelInferRequest()
        for name, value in found:
            message.parameters[name].string_param = value
        place = _behind_parameters(body)
        return b"".join((body[:place], message.SerializeToString(), body[place:]))

    def _matching(
        self, headers: Mapping[str, str | bytes]
    ) -> Iterable[tuple[str, str]]:
        pattern = self._pattern
        if pattern is None:
            return ()
        found = []
        for name, value in headers.items():
            is_ours = _NOT_FORWARDED.fullmatch(name) is not None
            if is_ours or isinstance(value, bytes) or not pattern.search(name):
                continue
            if name in _RESERVED or name.startswith(_RESERVED_PREFIX):
                message = (
                    f"Header '{name}' is reserved for Triton usage and cannot be "
                    "forwarded."
                )
                raise InvalidRequestError(message)
            found.append((name, value))
        return found


NO_FORWARDING: Final = HeaderForwarding("")


def _behind_parameters(body: bytes) -> int:
    """Return where a request's parameters end, so that fields stay in order."""
    position = 0
    try:
        while position < len(body):
            field, end = skip_field(body, position)
            if field > _PARAMETERS_FIELD:
                break
            position = end
    except WireFormatError:
        pass
    return position
