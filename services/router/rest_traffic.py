"""The split of a model's traffic over REST; see protos/traffic.proto."""

from typing import Final

from protos import traffic_pb2
from services.core.errors import InvalidRequestError
from services.core.model_version import parse_version
from services.router import rest_documents, rest_json
from services.router.cold_call import ColdMethod
from services.router.rest_http_body import RestCall
from services.router.rest_response import HttpReply

_MAX_WEIGHT: Final = 2**32 - 1
_MAX_VERSION: Final = 2**63 - 1


class RestTraffic:
    """Reads and sets splits through control."""

    def __init__(self, forward: ColdMethod) -> None:
        """Ask ``forward``, control's method."""
        self._forward = forward

    def read(self, call: RestCall) -> HttpReply:
        """Answer with the split of a model."""
        request = traffic_pb2.TrafficSettingRequest(model_name=call.model)
        return self._ask(request)

    def update(self, call: RestCall) -> HttpReply:
        """Set the split of a model, and answer with it once it is in force."""
        return self._ask(read_request(call.body, call.model))

    def _ask(self, request: traffic_pb2.TrafficSettingRequest) -> HttpReply:
        answer = self._forward(request.SerializeToString())
        told = traffic_pb2.TrafficSettingResponse.FromString(answer)
        return rest_documents.document(_document(told))


def _document(told: traffic_pb2.TrafficSettingResponse) -> dict[str, object]:
    """Return what holds; what a split does not have is left out."""
    split = told.split
    document: dict[str, object] = {
        "weights": {str(v): w for v, w in sorted(split.weights.items())},
        "sticky_parameter": split.sticky_parameter,
    }
    if split.sticky_header:
        document["sticky_header"] = split.sticky_header
    if split.shadow_version:
        document["shadow_version"] = split.shadow_version
        document["shadow_tolerance"] = split.shadow_tolerance
    if told.HasField("shadow"):
        document["shadow"] = {
            "matched": told.shadow.matched,
            "differed": told.shadow.differed,
            "failed": told.shadow.failed,
            "dropped": told.shadow.dropped,
        }
    return document


def read_request(body: bytes, model: str) -> traffic_pb2.TrafficSettingRequest:
    """Read POST /v2/models/NAME/traffic.

    Raises:
        InternalError: not JSON, or a value of another type.
        InvalidRequestError: a version or a weight that is none.
    """
    document = rest_json.record(rest_json.parse(body or b"{}"), "traffic")
    request = traffic_pb2.TrafficSettingRequest(model_name=model)
    request.split.SetInParent()
    weights = rest_json.optional_member(document, "weights")
    if weights is None:
        weights = {}
    for name, value in rest_json.record(weights, "weights").items():
        version = parse_version(name)
        weight = rest_json.unsigned(value, f"weights.{name}")
        if not version or weight > _MAX_WEIGHT:
            raise InvalidRequestError(f"no version and weight: '{name}': {weight}")
        request.split.weights[version] = weight
    for field in ("sticky_parameter", "sticky_header"):
        sticky = rest_json.optional_member(document, field)
        if sticky is not None:
            setattr(request.split, field, rest_json.string(sticky, field))
    shadow = rest_json.optional_member(document, "shadow_version")
    if shadow is not None:
        version = rest_json.unsigned(shadow, "shadow_version")
        if version > _MAX_VERSION:
            raise InvalidRequestError(f"shadow_version {version} is no version")
        request.split.shadow_version = version
    tolerance = rest_json.optional_member(document, "shadow_tolerance")
    if tolerance is not None:
        request.split.shadow_tolerance = rest_json.number(tolerance, "shadow_tolerance")
    return request
