"""Between control's records and what it says with routers, in protos/control.proto."""

from typing import Final

from protos import control_pb2, traffic_pb2
from protos.model_config_pb2 import ModelConfig
from services.control.commands import (
    AcknowledgeStatistics,
    CollectStatistics,
    MoveTraces,
    RefuseDemand,
    RouterOrder,
    SetLogs,
    SetStatistics,
    SetTraces,
    StateFound,
    StateStored,
)
from services.control.model_demand import ModelUse, RouterDemand
from services.control.route_table import RouteTable
from services.control.statistics_totals import (
    CacheState,
    Counted,
    Latencies,
    StatisticsReport,
)
from services.control.trace_wire import traces_to_proto
from services.control.traffic_split import TrafficSplit
from services.core import log_settings_proto
from services.core.lifecycle import ModelState
from services.core.statistics_fields import Phase

_STATES: Final = {
    ModelState.UNKNOWN: control_pb2.VersionRoute.UNKNOWN,
    ModelState.LOADING: control_pb2.VersionRoute.LOADING,
    ModelState.READY: control_pb2.VersionRoute.READY,
    ModelState.UNLOADING: control_pb2.VersionRoute.UNLOADING,
    ModelState.UNAVAILABLE: control_pb2.VersionRoute.UNAVAILABLE,
}


def routes_to_proto(table: RouteTable) -> control_pb2.RouterUpdate:
    """Return the table as routers get it.

    A version without a complete configuration is left out; its model stays. One
    that is about to serve again is called READY, so that a crash costs its clients
    time and not their requests.
    """
    message = control_pb2.RouteTable(revision=table.revision, ready=table.ready)
    models: dict[str, control_pb2.ModelRoute] = {}
    for name in sorted({route.model for route in table.versions} | table.loadable):
        models[name] = message.models.add(
            name=name, loads_on_demand=name in table.loadable
        )
        if name in table.splits:
            models[name].split.CopyFrom(split_to_proto(table.splits[name]))
    for route in table.versions:
        if route.is_routable:
            state = ModelState.READY if route.is_returning else route.state
            models[route.model].versions.add(
                version=route.version,
                state=_STATES[state],
                reason=route.reason,
                generation=route.generation,
                config=ModelConfig.FromString(route.config),
            )
    return control_pb2.RouterUpdate(routes=message)


def split_to_proto(split: TrafficSplit) -> traffic_pb2.TrafficSplit:
    """Return how a model's traffic is split, as routers and clients get it."""
    return traffic_pb2.TrafficSplit(
        weights=dict(split.weights),
        sticky_parameter=split.sticky_parameter,
        sticky_header=split.sticky_header,
        shadow_version=split.shadow_version,
        shadow_tolerance=split.shadow_tolerance,
    )


def router_order_to_proto(order: RouterOrder) -> control_pb2.RouterUpdate:
    """Return an order as routers get it."""
    match order:
        case AcknowledgeStatistics() | CollectStatistics() | SetStatistics():
            return _statistics_order_to_proto(order)
        case SetLogs(settings=log):
            return control_pb2.RouterUpdate(
                log_settings=log_settings_proto.to_proto(log)
            )
        case SetTraces():
            return control_pb2.RouterUpdate(trace_settings=traces_to_proto(order))
        case MoveTraces(session=session, by=by):
            move = control_pb2.TraceMove(session=session, by=by)
            return control_pb2.RouterUpdate(trace_move=move)
        case RefuseDemand(model=model, reason=reason):
            refused = control_pb2.DemandRefused(model=model, reason=reason)
            return control_pb2.RouterUpdate(demand_refused=refused)
        case StateStored() | StateFound():
            return _state_order_to_proto(order)


def _statistics_order_to_proto(
    order: AcknowledgeStatistics | CollectStatistics | SetStatistics,
) -> control_pb2.RouterUpdate:
    match order:
        case AcknowledgeStatistics(sequence=sequence):
            applied = control_pb2.StatisticsApplied(sequence=sequence)
            return control_pb2.RouterUpdate(statistics_applied=applied)
        case CollectStatistics(collection=collection):
            collect = control_pb2.CollectStatistics(collection=collection)
            return control_pb2.RouterUpdate(collect_statistics=collect)
        case SetStatistics(latency_distributions=is_wanted):
            settings = control_pb2.StatisticsSettings(latency_distributions=is_wanted)
            return control_pb2.RouterUpdate(statistics_settings=settings)


def _state_order_to_proto(order: StateStored | StateFound) -> control_pb2.RouterUpdate:
    match order:
        case StateStored(key=key, step=step):
            stored = control_pb2.StateStored(key=key, step=step)
            return control_pb2.RouterUpdate(state_stored=stored)
        case StateFound(key=key, data=data):
            found = control_pb2.StateFound(
                key=key, is_found=data is not None, data=data or b""
            )
            return control_pb2.RouterUpdate(state_found=found)


def demand_from_proto(message: control_pb2.ModelDemand) -> RouterDemand:
    """Return what a router's clients do with models that are loaded on demand."""
    return RouterDemand(
        wanted=frozenset(message.wanted),
        uses=tuple(
            ModelUse(model=each.model, is_in_use=each.in_use, idle_ns=each.idle_ns)
            for each in message.uses
        ),
        waits={each.model: (each.count, each.ns) for each in message.waits},
    )


def _cache_from_proto(message: control_pb2.ResponseCacheState) -> CacheState:
    return CacheState(
        capacity_bytes=message.capacity_bytes,
        size_bytes=message.size_bytes,
        entries=message.entries,
        hits=message.hits,
        misses=message.misses,
        evictions=message.evictions,
        lookup_ns=message.lookup_ns,
        insertion_ns=message.insertion_ns,
    )


def statistics_from_proto(message: control_pb2.StatisticsReport) -> StatisticsReport:
    """Return what a router counted; phases that nobody here knows are left out."""
    phases = {phase.value: phase for phase in Phase}
    return StatisticsReport(
        sequence=message.sequence,
        collection=message.collection,
        increments={
            (each.model, each.version): Counted(
                last_inference_ms=each.last_inference_ms, counts=dict(each.increments)
            )
            for each in message.versions
        },
        latencies=tuple(
            Latencies(
                version=(each.model, each.version),
                phase=phases[latencies.phase],
                counts=dict(latencies.counts),
            )
            for each in message.versions
            for latencies in each.latencies
            if latencies.phase in phases
        ),
        waiting={(each.model, each.version): each.count for each in message.waiting},
        loop_lag_ns=message.loop_lag_ns,
        cache=_cache_from_proto(message.cache) if message.HasField("cache") else None,
    )
