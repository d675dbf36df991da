"""Request headers that were validated once and may be recognised by their bytes.

A ModelInferRequest on the wire is: name, version, id, then the *header* proper
(parameters, inputs, requested outputs), then the raw tensor contents. From call
to call only id and contents differ. The first request with some header is parsed
and validated in full; its header's bytes become a key, and the next request with
the same bytes skips all of it: 0.5 us against 10 us of parsing and checking.

It must be exact: same bytes, same verdict. So nothing is learned unless every
byte of the message is accounted for, in this order and once; a hit needs the same
name and version bytes, an id of ASCII text, the same header bytes, and every tag
and length of the raw contents where they stood. All else takes the full path.
BYTES tensors are never learned: their contents have to be looked at.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from services.core.wire_format import (
    WireFormatError,
    decode_varint,
    skip_field,
)
from services.router.route_table import Route

NAME_TAG: Final = 0x0A
VERSION_TAG: Final = 0x12
ID_TAG: Final = 0x1A
RAW_CONTENTS_TAG: Final = 0x3A
_HEADER_FIELDS: Final = frozenset((4, 5, 6))
_LONGEST_SHORT_LENGTH: Final = 127
_MOST_HEADERS_OF_A_ROUTE: Final = 256
# Beyond it, parsing is little beside the copying, and remembering would cost memory
# that any client could claim.
_LONGEST_HEADER_BYTES: Final = 16 << 10
_MOST_PREFIXES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What admission found out about a request.

    Attributes:
        route: The version that will answer.
        rows: Rows of its tensors, >= 1.
        shape_key: Equal for requests whose tensors fit into one batch.
        learnable: Whether equal headers may share this verdict.
        is_special: Whether one of the next two is so.
        wants_timing: Whether the client asked for the times of its request.
        asked_by: The trace that a model's own request is to be part of; "": none.
        priority: What the client asked for; 0: nothing.
        timeout_ns: How long it wants to wait at most; 0: it did not say.
        regions: Shared memory that it uses, by name; never learned.
    """

    route: Route
    rows: int
    shape_key: Hashable
    learnable: bool
    is_special: bool = False
    wants_timing: bool = False
    asked_by: str = ""
    priority: int = 0
    timeout_ns: int = 0
    regions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Header:
    """A header's bytes up to the first contents, and every later tag and length."""

    suffix: bytes
    raw_prefixes: tuple[tuple[int, bytes], ...]
    verdict: Verdict


class LearnedHeaders:
    """Verdicts by the bytes they were reached from.

    A verdict holds for one route table: ``clear`` when the routes change.
    """

    __slots__ = ("_by_prefix",)

    def __init__(self) -> None:
        """Know nothing yet."""
        self._by_prefix: dict[bytes, dict[int, list[_Header]]] = {}

    def clear(self) -> None:
        """Forget everything: the routes have changed."""
        self._by_prefix.clear()

    def find(self, body: bytes) -> Verdict | None:
        """Return the verdict of an earlier request with the same header.

        Hot: one function, and every way out but one is a miss.

        Args:
            body: A serialized ModelInferRequest, well-formed or not.
        """
        try:
            # What is learned begins with a name's tag and has lengths of one byte:
            # a body where it is not so has another prefix.
            start = 2 + body[1]
            if body[start] == VERSION_TAG:
                start += 2 + body[start + 1]
            by_length = self._by_prefix.get(body[:start])
            if by_length is None:
                return None
            if body[start] == ID_TAG:
                end = start + 2 + body[start + 1]
                # So is its length then, which is the second byte.
                if not body[start:end].isascii():
                    return None
                start = end
        except IndexError:
            return None
        for header in by_length.get(len(body) - start, ()):
            if body.startswith(header.suffix, start):
                for offset, prefix in header.raw_prefixes:
                    if not body.startswith(prefix, start + offset):
                        break
                else:
                    return header.verdict
        return None

    def learn(self, body: bytes, verdict: Verdict) -> bool:
        """Remember ``verdict`` for requests like ``body``; False if it cannot be.

        ``body`` has been parsed and found valid; here only its layout decides.
        """
        if not verdict.learnable:
            return False
        try:
            layout = _layout(body)
        except (WireFormatError, IndexError):
            return False
        if layout is None:
            return False
        prefix, start, end, raw_prefixes = layout
        if end - start > _LONGEST_HEADER_BYTES:
            return False
        # The first prefix follows the header at once.
        (_, first), *others = raw_prefixes
        if len(self._by_prefix) >= _MOST_PREFIXES:
            self._by_prefix.clear()
        by_length = self._by_prefix.setdefault(prefix, {})
        if sum(map(len, by_length.values())) >= _MOST_HEADERS_OF_A_ROUTE:
            by_length.clear()
        suffix = body[start : end + len(first)]
        header = _Header(suffix, tuple(others), verdict)
        by_length.setdefault(len(body) - start, []).append(header)
        return True


def _layout(
    body: bytes,
) -> tuple[bytes, int, int, tuple[tuple[int, bytes], ...]] | None:
    """Return name-and-version bytes, header bounds and raw prefixes of ``body``.

    None unless the message is laid out as every common client lays it out, with
    nothing repeated, unknown or out of order.
    """
    prefix_end = start = 0
    for tag in (NAME_TAG, VERSION_TAG, ID_TAG):
        if body[start] == tag:
            if body[start + 1] > _LONGEST_SHORT_LENGTH:
                return None
            start += 2 + body[start + 1]
        if tag != ID_TAG:
            prefix_end = start
    end = start
    while end < len(body) and body[end] != RAW_CONTENTS_TAG:
        field, end = skip_field(body, end)
        if field not in _HEADER_FIELDS:
            return None
    raw_prefixes = _raw_prefixes(body, start, end)
    if not raw_prefixes or body[0] != NAME_TAG:
        return None
    return body[:prefix_end], start, end, raw_prefixes


def _raw_prefixes(
    body: bytes, start: int, position: int
) -> tuple[tuple[int, bytes], ...]:
    """Return tag and length of each raw content, with its offset from ``start``.

    Empty if anything but raw contents stands between ``position`` and the end.
    """
    prefixes = []
    while position < len(body):
        if body[position] != RAW_CONTENTS_TAG:
            return ()
        _, behind = skip_field(body, position)
        _, content = decode_varint(body, position + 1)
        prefixes.append((position - start, body[position:content]))
        position = behind
    return tuple(prefixes)
