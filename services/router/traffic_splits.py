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
from services.core.wire_format import WireFormatError
from services.router.route_table import RouteTable, TrafficSplit
from services.router.version_field import model_name, names_version, with_version

_HASH_RANGE: Final = 1 << 32
_SEQUENCE: Final = "sequence_id"

Headers = Callable[[], Mapping[str, str | bytes]]
"""Returns what came beside a request, names in lower case: asked only if needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """One model's ready versions, as bytes, and where their shares of [0, 1) end."""

    versions: tuple[bytes, ...]
    ends: tuple[float, ...]
    sticky_parameter: str
    sticky_header: str
    has_shadow: bool

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

    def direct(self, body: bytes, headers: Headers) -> tuple[bytes, bool]:
        """Return a serialized ModelInferRequest that names a version, if one is due.

        What is no such request is returned as it is: others refuse it.

        Args:
            body: The request.
            headers: What came beside it.

        Returns:
            The request, and whether its model's shadow is to get a copy of it.
        """
        try:
            name, end = model_name(body)
        except WireFormatError:
            return self._direct_parsed(body, headers)
        shares = self._shares.get(name)
        if shares is None:
            return body, False
        if names_version(body, end):
            return self._direct_parsed(body, headers)
        version = self._choose(shares, body, headers)
        return with_version(body, version), shares.has_shadow

    def _direct_parsed(self, body: bytes, headers: Headers) -> tuple[bytes, bool]:
        """As ``direct``, for the unusual order of fields."""
        try:
            request = inference_pb2.ModelInferRequest.FromString(body)
        except DecodeError:
            return body, False
        shares = self._shares.get(request.model_name.encode())
        if shares is None or request.model_version:
            return body, False
        request.model_version = self._choose(shares, body, headers).decode()
        return request.SerializeToString(), shares.has_shadow

    def _choose(self, shares: _Shares, body: bytes, headers: Headers) -> bytes:
        value = b""
        if shares.sticky_parameter:
            value = _parameter(body, shares.sticky_parameter)
        elif shares.sticky_header:
            value = _bytes_of(headers().get(shares.sticky_header, b""))
        if value:
            return shares.version_at(zlib.crc32(value) / _HASH_RANGE)
        return shares.version_at(self._draw())


def shadow_of(split: TrafficSplit, table: RouteTable, model: str) -> int:
    """Return the version that gets copies now; 0: none.

    It is none if it is not ready, if nothing else is, or if a request to it is more
    than one request and one response: a sequence, or a decoupled model.
    """
    versions = table.models.get(model, {})
    route = versions.get(split.shadow_version)
    if route is None or not route.is_ready:
        return 0
    has_others = any(
        each.is_ready for each in versions.values() if each.version != route.version
    )
    is_plain = not any(
        each.config.decoupled or each.config.sequence_batching is not None
        for each in versions.values()
    )
    return route.version if has_others and is_plain else 0


def _shares(split: TrafficSplit, table: RouteTable, model: str) -> _Shares | None:
    shadow = shadow_of(split, table, model)
    ready = [int(version) for version in table.ready_versions(model)]
    weights = {
        version: split.weights[version]
        for version in ready
        if split.weights.get(version)
    }
    if not weights and shadow:
        # As without a split; but a shadow is never asked instead of another.
        weights = {max(version for version in ready if version != shadow): 1}
    total = sum(weights.values())
    if not total:
        return None
    versions = table.models.get(model, {}).values()
    has_sequences = any(each.config.sequence_batching is not None for each in versions)
    return _Shares(
        versions=tuple(str(version).encode() for version in weights),
        ends=tuple(end / total for end in itertools.accumulate(weights.values())),
        # A sequence must stay together whatever the split says.
        sticky_parameter=_SEQUENCE if has_sequences else split.sticky_parameter,
        sticky_header=split.sticky_header,
        has_shadow=bool(shadow),
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


def _bytes_of(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
