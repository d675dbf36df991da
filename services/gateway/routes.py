"""Which paths exist, read off the schema: the gateway knows no route of its own.

Source: the google.api.http rules in protos/rest.proto.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from google.api import annotations_pb2, http_pb2
from google.protobuf.descriptor import ServiceDescriptor

_VARIABLE: Final = re.compile(r"\{(\w+)\}")
# What a variable of a path may be; Triton takes a version only in digits.
_VERSION: Final = "[0-9]+"
_NAME: Final = "[^/]+"


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A verb and an RE2 expression for the whole path."""

    verb: str
    regex: str


def path_patterns(
    service: ServiceDescriptor, *, is_streamed_only: bool = False
) -> tuple[PathPattern, ...]:
    """Return the paths that ``service`` is reached by.

    ``is_streamed_only``: those whose bodies are streamed to it.
    """
    return tuple(
        PathPattern(*_verb_and_regex(rule))
        for method in service.methods
        if method.client_streaming or not is_streamed_only
        for rule in _rules(method.GetOptions().Extensions[annotations_pb2.http])
    )


def either(patterns: tuple[PathPattern, ...], verb: str | None = None) -> str:
    """Return one expression for all of ``patterns``, or those with ``verb``."""
    chosen = dict.fromkeys(p.regex for p in patterns if verb in (None, p.verb))
    return "|".join(f"(?:{regex})" for regex in chosen)


def _rules(rule: http_pb2.HttpRule) -> Iterator[http_pb2.HttpRule]:
    yield rule
    yield from rule.additional_bindings


def _verb_and_regex(rule: http_pb2.HttpRule) -> tuple[str, str]:
    verb = rule.WhichOneof("pattern")
    template: str = getattr(rule, verb)
    pieces = _VARIABLE.split(template)
    # Literal text and names of variables alternate.
    regex = "".join(
        (_VERSION if piece == "model_version" else _NAME)
        if index % 2
        else re.escape(piece)
        for index, piece in enumerate(pieces)
    )
    return verb.upper(), regex
