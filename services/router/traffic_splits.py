"""Requests that name no version, directed to one by their model's split. Pure.

A request is changed before anything else looks at it: it then names a version, like
any other. Without splits nothing is looked at.
"""

import bisect
import itertools
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from protos import inference_pb2
from services.core.wire_format import (
    WireFormatError,
    decode_varint,
    length_prefix,
)
from services.router.route_table import RouteTable, TrafficSplit

_NAME_TAG: Final = 0x0A
_VERSION_TAG: Final = 0x12
_VERSION_FIELD: Final = 2
_HASH_RANGE: Final = 1 << 32
_SEQUENCE: Final = "sequence_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """One model's ready versions, as bytes, and where their shares of [0, 1) end."""

    versions: tuple[bytes, ...]
    ends: tuple[float, ...]
    sticky_parameter: str

    def version_at(self, point: float) -> bytes:
        index = bisect.bisect_right(self.ends, point)
        return self.versions[min(index, len(self.versions) - 1)]


class TrafficSplits:
    """Directs requests by the splits of a route table."""

    def __init__(self, draw: Callable[[], float]) -> None:
        """Begin without splits.

        Args:
            draw: Returns a random number of [0, 1).
        """
        self._draw = draw
        self._shares: dict[bytes, _Shares] = {}

    @property
    def are_any(self) -> bool:
        """Whether there is anything to direct."""
        return bool(self._shares)

    def apply(self, table: RouteTable) -> None:
        """Direct by ``table`` from now on; versions that are not ready get nothing."""
        self._shares = {
            model.encode(): shares
            for model, split in table.splits.items()
            if (shares := _shares(split, table, model))
        }

    def direct(self, body: bytes) -> bytes:
        """Return a serialized ModelInferRequest that names a version, if one is due.

        What is no such request is returned as it is: others refuse it.
        """
        if body[:1] != bytes((_NAME_TAG,)):
            return self._direct_parsed(body)
        try:
            size, start = decode_varint(body, 1)
        except WireFormatError:
            return body
        end = start + size
        shares = self._shares.get(body[start:end])
        if shares is None:
            return body
        if body[end : end + 1] == bytes((_VERSION_TAG,)):
            return self._direct_parsed(body)
        version = self._choose(shares, body)
        return b"".join(
            (
                body[:end],
                length_prefix(_VERSION_FIELD, len(version)),
                version,
                body[end:],
            )
        )

    def _direct_parsed(self, body: bytes) -> bytes:
        """As ``direct``, for the unusual order of fields."""
        try:
            request = inference_pb2.ModelInferRequest.FromString(body)
        except DecodeError:
            return body
        shares = self._shares.get(request.model_name.encode())
        if shares is None or request.model_version:
            return body
        request.model_version = self._choose(shares, body).decode()
        return request.SerializeToString()

    def _choose(self, shares: _Shares, body: bytes) -> bytes:
        if shares.sticky_parameter:
            value = _parameter(body, shares.sticky_parameter)
            if value:
                return shares.version_at(zlib.crc32(value) / _HASH_RANGE)
        return shares.version_at(self._draw())


def _shares(split: TrafficSplit, table: RouteTable, model: str) -> _Shares | None:
    weights = {
        version: split.weights[int(version)]
        for version in table.ready_versions(model)
        if split.weights.get(int(version))
    }
    versions = table.models.get(model, {}).values()
    has_sequences = any(each.config.sequence_batching is not None for each in versions)
    total = sum(weights.values())
    if not total:
        return None
    return _Shares(
        versions=tuple(version.encode() for version in weights),
        ends=tuple(end / total for end in itertools.accumulate(weights.values())),
        # A sequence must stay together whatever the split says.
        sticky_parameter=_SEQUENCE if has_sequences else split.sticky_parameter,
    )


def _parameter(body: bytes, name: str) -> bytes:
    """Return a request's parameter as bytes; b"" if it has none of this name."""
    try:
        parameters: Mapping[str, inference_pb2.InferParameter] = (
            inference_pb2.ModelInferRequest.FromString(body).parameters
        )
    except DecodeError:
        return b""
    if name not in parameters:
        return b""
    field = parameters[name].WhichOneof("parameter_choice")
    return str(getattr(parameters[name], field)).encode() if field else b""
