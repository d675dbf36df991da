"""The gRPC server of control, with every service it offers."""

from typing import Final

import grpc

from protos import control_pb2_grpc, rest_pb2_grpc
from services.control.error_interceptor import ErrorInterceptor
from services.control.management_servicer import ManagementServicer, UnservedMethods
from services.control.metrics_servicer import MetricsServicer
from services.control.parts import Parts
from services.control.readiness_servicer import ReadinessServicer
from services.control.response_servicer import ResponseServicer
from services.control.router_servicer import RouterServicer
from services.control.settings_servicer import SettingsServicer
from services.control.statistics_servicer import StatisticsServicer
from services.control.traffic_servicer import TrafficServicer
from services.control.worker_servicer import WorkerServicer
from services.core.clock import MonotonicClock

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    # A peer whose host is gone is noticed.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)


def server_of(parts: Parts) -> grpc.aio.Server:
    """Return a server with every door of control but the health check's."""
    server = grpc.aio.server(interceptors=(ErrorInterceptor(),), options=_OPTIONS)
    _for_our_own_processes(server, parts)
    counted = StatisticsServicer(parts.supervisor, parts.statistics, parts.metrics)
    control_pb2_grpc.add_StatisticsControlServicer_to_server(counted, server)
    traffic = TrafficServicer(parts.supervisor, parts.store, parts.statistics)
    server.add_generic_rpc_handlers(
        (
            ManagementServicer(parts.catalog, parts.supervisor).methods(),
            counted.methods(),
            SettingsServicer(
                parts.supervisor, parts.live.traces, parts.live.log
            ).methods(),
            traffic.methods(),
            UnservedMethods(),
        )
    )
    metrics = MetricsServicer(
        parts.supervisor,
        parts.statistics,
        parts.metrics,
        MonotonicClock(),
        parts.catalog.on_demand,
    )
    rest_pb2_grpc.add_MetricsServiceServicer_to_server(metrics, server)
    return server


def _for_our_own_processes(server: grpc.aio.Server, parts: Parts) -> None:
    control_pb2_grpc.add_WorkerControlServicer_to_server(
        WorkerServicer(parts.supervisor, parts.live, parts.metrics), server
    )
    control_pb2_grpc.add_RouterControlServicer_to_server(
        RouterServicer(
            parts.supervisor,
            parts.statistics,
            parts.statistics.order,
            parts.live,
            parts.catalog.on_demand,
            states=parts.states,
        ),
        server,
    )
    control_pb2_grpc.add_ReadinessControlServicer_to_server(
        ReadinessServicer(parts.supervisor), server
    )
    control_pb2_grpc.add_ResponseControlServicer_to_server(
        ResponseServicer(parts.responses), server
    )
