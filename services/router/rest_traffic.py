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
        split = traffic_pb2.TrafficSettingResponse.FromString(answer).split
        return rest_documents.document(
            {
                "weights": {str(v): w for v, w in sorted(split.weights.items())},
                "sticky_parameter": split.sticky_parameter,
            }
        )


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
    sticky = rest_json.optional_member(document, "sticky_parameter")
    if sticky is not None:
        request.split.sticky_parameter = rest_json.string(sticky, "sticky_parameter")
    return request
