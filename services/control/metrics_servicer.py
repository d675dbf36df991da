"""Serves the Prometheus page as an HTTP body."""

from typing import Any

import grpc
from google.api.httpbody_pb2 import HttpBody

from protos import rest_pb2, rest_pb2_grpc
from services.control.metrics import CONTENT_TYPE, Measured, render
from services.control.route_table import routes_of
from services.control.supervisor import Supervisor


class MetricsServicer(rest_pb2_grpc.MetricsServiceServicer):
    """What control knows of the stack."""

    def __init__(self, supervisor: Supervisor) -> None:
        """Serve what ``supervisor`` knows."""
        self._supervisor = supervisor

    async def Metrics(
        self,
        request: rest_pb2.MetricsRequest,  # noqa: ARG002 - it is empty
        context: grpc.aio.ServicerContext[Any, Any],  # noqa: ARG002
    ) -> HttpBody:
        """Return the page."""
        measured = Measured(
            routes=routes_of(self._supervisor.reconciler.registry),
            worker_count=self._supervisor.worker_count,
            router_count=self._supervisor.router_count,
            load_durations_s=self._supervisor.load_durations.seconds(),
        )
        return HttpBody(content_type=CONTENT_TYPE, data=render(measured).encode())
