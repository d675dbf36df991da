"""JSON as REST requests bring it: Triton's limits, its words for what is wrong. Pure.

Source: Triton parses with RapidJSON and its NaN and infinity flag. The messages
are RapidJSON's, the statuses those of Triton's HTTP server: a document that is no
JSON, or has a value of another type than the protocol's, is an internal error.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import orjson

from services.core.errors import InternalError, InvalidRequestError

MAX_DEPTH: Final = 100
MAX_INT64: Final = 2**63 - 1
MAX_UINT64: Final = 2**64 - 1

_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1

# What Python's parser says, by its first words, in RapidJSON's.
_REASONS: Final = (
    ("Expecting property name", "Missing a name for object member."),
    (
        "Illegal trailing comma before end of object",
        "Missing a name for object member.",
    ),
    ("Illegal trailing comma before end of array", "Invalid value."),
    ("Expecting ':'", "Missing a colon after a name of object member."),
    ("Extra data", "The document root must not be followed by other values."),
    ("Unterminated string", "Missing a closing quotation mark in string."),
    ("Invalid \\uXXXX", "Incorrect hex digit after \\u escape in string."),
    ("Invalid \\escape", "Invalid escape character in string."),
    ("Invalid control character", "Invalid encoding in string."),
)


def parse(text: bytes | memoryview) -> object:
    """Return the value of a JSON document.

    Besides JSON, the words NaN, Infinity and -Infinity are numbers, and strings
    may hold bytes that are not UTF-8: they become surrogates, as by Python's
    ``surrogateescape``.

    Raises:
        InvalidRequestError: nested more than 100 levels deep.
        InternalError: not JSON.
    """
    document = bytes(text)
    if document.count(b"[") + document.count(b"{") > MAX_DEPTH:
        _check_depth(document)
    try:
        return orjson.loads(document)
    except orjson.JSONDecodeError:
        return _parse_leniently(document)


def _check_depth(document: bytes) -> None:
    brackets = _STRINGS.sub(b"", document).translate(None, _NOT_BRACKETS)
    if not brackets:
        return
    depths = np.cumsum(_STEPS[np.frombuffer(brackets, np.uint8)], dtype=np.int64)
    if depths.max() > MAX_DEPTH:
        message = f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})"
        raise InvalidRequestError(message)


def _parse_leniently(document: bytes) -> object:
    text = document.decode(errors="surrogateescape")
    if not text.strip(" \t\r\n"):
        raise _not_json("The document is empty.", 0)
    try:
        value: object = json.loads(text, parse_float=_finite)
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode(errors="surrogateescape"))
        raise _not_json(_reason(error, document[:offset]), offset) from None
    except ValueError:
        # From _finite, or an integer of thousands of digits.
        raise _not_json("Number too big to be stored in double.", 0) from None
    if b"\\u" in document:
        _check_surrogates(document, value)
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(digits)
    return value


def _check_surrogates(document: bytes, value: object) -> None:
    r"""Refuse a ``\u`` escape of half a character, which no UTF-8 can hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode(errors="surrogateescape")
    except UnicodeEncodeError:
        reason = "The surrogate pair in string is invalid."
        raise _not_json(reason, document.find(b"\\u")) from None


def _reason(error: json.JSONDecodeError, before: bytes) -> str:
    for start, reason in _REASONS:
        if error.msg.startswith(start):
            return reason
    if error.msg.startswith("Expecting ','"):
        if _innermost(before) == "{":
            return "Missing a comma or } after an object member."
        return "Missing a comma or ] after an array element."
    return "Invalid value."


def _innermost(before: bytes) -> str:
    """Return the bracket that is still open at the end of ``before``."""
    brackets = _STRINGS.sub(b"", before).translate(None, _NOT_BRACKETS)
    opened: list[int] = []
    for bracket in brackets:
        if bracket in b"[{":
            opened.append(bracket)
        elif opened:
            opened.pop()
    return chr(opened[-1]) if opened else ""


def _not_json(reason: str, offset: int) -> InternalError:
    message = f"failed to parse the request JSON buffer: {reason} at {offset}"
    return InternalError(message)


def member(value: object, key: str) -> object:
    """Return the member of an object.

    Raises:
        InternalError: it has none, or ``value`` is no object.
    """
    if isinstance(value, dict) and key in value:
        found: object = value[key]
        return found
    message = (
        f"Unable to parse '{key}': attempt to access non-existing object member '{key}'"
    )
    raise InternalError(message)


def optional_member(value: object, key: str) -> object:
    """Return the member of an object, None if there is none."""
    return value.get(key) if isinstance(value, dict) else None


def string(value: object, key: str) -> str:
    """Return ``value`` if it is a string.

    Raises:
        InternalError: it is not.
        InvalidRequestError: its bytes are no UTF-8, which only BYTES may be.
    """
    if isinstance(value, str):
        return value if value.isascii() else unicode_text(value)
    raise mismatch(key, "string")


def unicode_text(text: str) -> str:
    """Return ``text`` if it is one; protobuf and gRPC carry no other bytes.

    Raises:
        InvalidRequestError: it came as bytes that are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("names and parameters must be UTF-8") from None
    return text


def array(value: object, key: str) -> Sequence[object]:
    """Return ``value`` if it is an array; as ``string``."""
    if isinstance(value, list):
        return value
    raise mismatch(key, "array")


def record(value: object, key: str) -> Mapping[str, object]:
    """Return ``value`` if it is an object; as ``string``."""
    if isinstance(value, dict):
        return value
    raise mismatch(key, "object")


def boolean(value: object, key: str) -> bool:
    """Return ``value`` if it is true or false; as ``string``."""
    if isinstance(value, bool):
        return value
    raise mismatch(key, "boolean")


def unsigned(value: object, key: str, verb: str = "parse") -> int:
    """Return ``value`` if it is an integer from 0 to 2^64 - 1; as ``string``."""
    if type(value) is int and 0 <= value <= MAX_UINT64:
        return value
    raise mismatch(key, "unsigned-integer", verb)


def number(value: object, key: str) -> float:
    """Return ``value`` if it is a number; as ``string``."""
    if type(value) in (int, float):
        return float(str(value))
    raise mismatch(key, "number")


def mismatch(key: str, kind: str, verb: str = "parse") -> InternalError:
    """Return the error for a value that is no ``kind``."""
    message = f"Unable to {verb} '{key}': attempt to access JSON non-{kind} as {kind}"
    return InternalError(message)
