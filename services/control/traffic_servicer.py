"""The door of the traffic extension; routers forward its method here."""

from typing import Any, Final

import grpc
import structlog

from protos import traffic_pb2
from services.control.events import TrafficSplitsSet
from services.control.route_table import routes_of
from services.control.store import Store
from services.control.supervisor import Supervisor
from services.control.traffic_split import TrafficSplit, from_text, to_text
from services.core.errors import ModelNotFoundError

SERVICE: Final = "nereid.traffic.TrafficService"

_SETTING: Final = "traffic"
_Context = grpc.aio.ServicerContext[Any, Any]

_log = structlog.get_logger(__name__)


class TrafficServicer:
    """Sets and tells how traffic is split; remembers it in the store."""

    def __init__(self, supervisor: Supervisor, store: Store) -> None:
        """Begin without any split."""
        self._supervisor = supervisor
        self._store = store

    async def restore(self) -> None:
        """Begin with what an earlier process was told."""
        text = (await self._store.restore_settings()).get(_SETTING, "")
        try:
            splits = from_text(text) if text else {}
        except ValueError as error:
            _log.warning("stored traffic splits are unreadable", reason=str(error))
            return
        if splits:
            self._supervisor.tell(TrafficSplitsSet(splits=splits))

    async def TrafficSetting(
        self, request: traffic_pb2.TrafficSettingRequest, context: _Context
    ) -> traffic_pb2.TrafficSettingResponse:
        """Set the split of a model if there is one; return when it is in force."""
        del context
        model = request.model_name
        reconciler = self._supervisor.reconciler
        splits = dict(reconciler.splits)
        known = {route.model for route in routes_of(reconciler.registry)}
        if model not in known | splits.keys():
            raise ModelNotFoundError(
                f"Request for unknown model: '{model}' is not found"
            )
        if request.HasField("split"):
            splits.pop(model, None)
            if request.split.weights:
                splits[model] = TrafficSplit(
                    weights=tuple(sorted(request.split.weights.items())),
                    sticky_parameter=request.split.sticky_parameter,
                )
            self._store.save_setting(_SETTING, to_text(splits))
            self._supervisor.tell(TrafficSplitsSet(splits=splits))
            await self._supervisor.routes_applied()
        return traffic_pb2.TrafficSettingResponse(split=_to_proto(splits.get(model)))

    def methods(self) -> "grpc.GenericRpcHandler[Any, Any]":
        """Return the method as a server takes it."""
        handler = grpc.unary_unary_rpc_method_handler(
            self.TrafficSetting,
            traffic_pb2.TrafficSettingRequest.FromString,
            traffic_pb2.TrafficSettingResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(
            SERVICE, {"TrafficSetting": handler}
        )


def _to_proto(split: TrafficSplit | None) -> traffic_pb2.TrafficSplit:
    if split is None:
        return traffic_pb2.TrafficSplit()
    return traffic_pb2.TrafficSplit(
        weights=dict(split.weights), sticky_parameter=split.sticky_parameter
    )
