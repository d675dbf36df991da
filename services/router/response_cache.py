"""Answers that are given again without asking a model. Pure.

A key stands for all that an answer depends on: the loading of the version, the
inputs whatever their order, the parameters that reach the model, and the outputs
that are asked for. The last of these Triton leaves out, and then answers with
outputs nobody asked for.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from services.core.shared_memory_region import REGION_PARAMETER
from services.core.trace_token import TRACE_PARAMETER
from services.core.wire_format import skip_field, split_fields

_ID: Final = 3
_PARAMETERS: Final = 4
_INPUTS: Final = 5
_OUTPUTS: Final = 6
_RAW: Final = 7
_DIGEST_BYTES: Final = 24
_HEAD_BYTES: Final = 4
# What an entry costs beside the bytes of its answer.
ENTRY_BYTES: Final = 256
_ELSEWHERE: Final = REGION_PARAMETER.encode()
# Parameters that say when and how a request is to be executed: keys of map entries.
_NOT_FOR_THE_MODEL: Final = tuple(
    b"\x0a" + bytes((len(name),)) + name
    for name in (
        b"priority",
        b"timeout",
        b"triton_enable_empty_final_response",
        TRACE_PARAMETER.encode(),
    )
)
_SEQUENCE: Final = b"sequence_"


class ResponseCache:
    """Serialized responses by key; the one that was used longest ago goes first.

    Attributes:
        capacity_bytes: Of all entries.
        size_bytes: Of those that are here.
        hits: Lookups that found something.
        misses: Lookups that did not.
        evictions: Entries that had to go.
        lookup_ns: What all lookups took together; its user measures.
        insertion_ns: The same of insertions.
    """

    __slots__ = (
        "_entries",
        "capacity_bytes",
        "evictions",
        "hits",
        "insertion_ns",
        "lookup_ns",
        "misses",
        "size_bytes",
    )

    def __init__(self, capacity_bytes: int) -> None:
        """Begin empty."""
        self.capacity_bytes = capacity_bytes
        self.size_bytes = self.hits = self.misses = self.evictions = 0
        self.lookup_ns = self.insertion_ns = 0
        self._entries: OrderedDict[bytes, tuple[bytes, bytes]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def find(self, key: bytes, identity: bytes) -> bytes | None:
        """Return the response to a request, if one like it was answered before.

        Args:
            key: From ``request_key``.
            identity: The request's id, a serialized field; b"" without one.
        """
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        head, tail = entry
        return b"".join((head, identity, tail))

    def insert(self, key: bytes, response: bytes) -> None:
        """Keep a response, unless it is larger than all the cache may be.

        Raises:
            WireFormatError: it is no message.
        """
        entry = _without_id(response)
        size = _size_of(entry)
        if size > self.capacity_bytes:
            return
        former = self._entries.pop(key, None)
        if former is not None:
            self.size_bytes -= _size_of(former)
        while self.size_bytes + size > self.capacity_bytes:
            _, evicted = self._entries.popitem(last=False)
            self.size_bytes -= _size_of(evicted)
            self.evictions += 1
        self._entries[key] = entry
        self.size_bytes += size


def pack(response: bytes) -> bytes:
    """Return a response as it is kept outside of this process.

    Raises:
        WireFormatError: it is no message.
    """
    head, tail = _without_id(response)
    return b"".join((len(head).to_bytes(_HEAD_BYTES, "little"), head, tail))


def unpack(packed: bytes, identity: bytes) -> bytes:
    """Return the response that ``pack`` was given, to another request.

    Args:
        packed: What was kept.
        identity: The request's id, a serialized field; b"" without one.
    """
    end = _HEAD_BYTES + int.from_bytes(packed[:_HEAD_BYTES], "little")
    return b"".join((packed[_HEAD_BYTES:end], identity, packed[end:]))


def request_key(generation: int, body: bytes) -> tuple[bytes, bytes]:
    """Return what stands for an admitted request, and the field with its id.

    Args:
        generation: Of the version that answers it.
        body: A serialized ModelInferRequest with raw contents.

    Returns:
        An empty key if its answer is not to be kept: tensors in shared memory may
        change while the request does not, and a sequence goes on.

    Raises:
        WireFormatError: it is no message.
    """
    identity = b""
    parameters: list[bytes] = []
    headers: list[bytes] = []
    outputs: list[bytes] = []
    raws: list[memoryview] = []
    view = memoryview(body)
    for number, start, content, end in split_fields(body):
        if number == _RAW:
            raws.append(view[content:end])
        elif number == _ID:
            identity = body[start:end]
        elif number == _PARAMETERS:
            if not body.startswith(_NOT_FOR_THE_MODEL, content, end):
                parameters.append(body[start:end])
        elif number == _INPUTS:
            headers.append(body[start:end])
        elif number == _OUTPUTS:
            outputs.append(body[start:end])
    if any(_ELSEWHERE in each for each in (*headers, *outputs)) or any(
        _SEQUENCE in each for each in parameters
    ):
        return b"", identity
    inputs = sorted(zip(headers, raws, strict=False), key=_header)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    digest.update(generation.to_bytes(8, "little"))
    _add(digest, sorted(parameters))
    _add(digest, sorted(outputs))
    _add(digest, (header for header, _ in inputs))
    _add(digest, (raw for _, raw in inputs))
    return digest.digest(), identity


def _header(tensor: tuple[bytes, memoryview]) -> bytes:
    return tensor[0]


def _add(digest: "hashlib.blake2b", parts: Iterable[bytes | memoryview]) -> None:
    """Add parts so that no others give the same bytes."""
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    digest.update(b"\xff" * 8)


def _without_id(response: bytes) -> tuple[bytes, bytes]:
    """Return what stands before the id in a ModelInferResponse, and what behind."""
    position = 0
    while position < len(response):
        number, end = skip_field(response, position)
        if number == _ID:
            return response[:position], response[end:]
        if number > _ID:
            break
        position = end
    return response[:position], response[position:]


def _size_of(entry: tuple[bytes, bytes]) -> int:
    head, tail = entry
    return len(head) + len(tail) + ENTRY_BYTES
