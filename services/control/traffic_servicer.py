"""The door of the traffic extension; routers forward its method here."""

from typing import Any, Final

import grpc
import structlog

from protos import traffic_pb2
from services.control.events import TrafficSplitsSet
from services.control.route_table import routes_of
from services.control.router_wire import split_to_proto
from services.control.statistics import Statistics
from services.control.statistics_totals import Counted
from services.control.store import Store
from services.control.supervisor import Supervisor
from services.control.traffic_split import TrafficSplit, from_text, to_text
from services.core.errors import ModelNotFoundError
from services.core.statistics_fields import ShadowOutcome, shadow_field

SERVICE: Final = "nereid.traffic.TrafficService"

_SETTING: Final = "traffic"
_Context = grpc.aio.ServicerContext[Any, Any]

_log = structlog.get_logger(__name__)


class TrafficServicer:
    """Sets and tells how traffic is split; remembers it in the store."""

    def __init__(
        self, supervisor: Supervisor, store: Store, statistics: Statistics
    ) -> None:
        """Begin without any split; ``statistics`` know what became of copies."""
        self._supervisor = supervisor
        self._store = store
        self._statistics = statistics

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
            if request.split.ByteSize():
                splits[model] = _from_proto(request.split)
            self._store.save_setting(_SETTING, to_text(splits))
            self._supervisor.tell(TrafficSplitsSet(splits=splits))
            await self._supervisor.routes_applied()
        split = splits.get(model)
        return traffic_pb2.TrafficSettingResponse(
            split=_to_proto(split), shadow=await self._shadow_counts(model, split)
        )

    async def _shadow_counts(
        self, model: str, split: TrafficSplit | None
    ) -> traffic_pb2.ShadowCounts | None:
        if split is None or not split.shadow_version:
            return None
        if not self._statistics.metrics.has_statistics:
            return None
        totals = await self._statistics.totals()
        counted = totals.get((model, split.shadow_version), Counted())
        return traffic_pb2.ShadowCounts(
            **{each.value: counted[shadow_field(each)] for each in ShadowOutcome}
        )

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


def _from_proto(message: traffic_pb2.TrafficSplit) -> TrafficSplit:
    return TrafficSplit(
        weights=tuple(sorted(message.weights.items())),
        sticky_parameter=message.sticky_parameter,
        # Names of headers come in lower case, whatever their sender wrote.
        sticky_header=message.sticky_header.lower(),
        shadow_version=message.shadow_version,
        shadow_tolerance=message.shadow_tolerance,
    )


def _to_proto(split: TrafficSplit | None) -> traffic_pb2.TrafficSplit:
    return traffic_pb2.TrafficSplit() if split is None else split_to_proto(split)
