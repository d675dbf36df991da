"""The door for routers: one stream each."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Never

import grpc

from protos import control_pb2, control_pb2_grpc
from services.control import wire
from services.control.events import RoutesApplied
from services.control.router_links import RouterLink
from services.control.supervisor import Supervisor
from services.core.errors import InvalidRequestError


class RouterServicer(control_pb2_grpc.RouterControlServicer):
    """Brings routers their tables and their acknowledgements back."""

    def __init__(self, supervisor: Supervisor) -> None:
        """Serve ``supervisor``."""
        self._supervisor = supervisor

    async def Attach(  # type: ignore[override]  # it writes; the stub wants yields
        self,
        request_iterator: AsyncIterator[control_pb2.RouterReport],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """Serve one router as long as its stream lives."""
        first = await anext(request_iterator, None)
        if first is None or first.WhichOneof("report") != "hello":
            raise InvalidRequestError("a router's first report must be its hello")
        if not (first.hello.router_id and first.hello.worker_endpoint):
            raise InvalidRequestError(
                "a router must say its router_id and its worker_endpoint"
            )
        link = self._supervisor.attach_router(
            first.hello.router_id, first.hello.worker_endpoint
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(_send(link, context))
                async for report in request_iterator:
                    self._take(link, report)
                sending.cancel()
        finally:
            self._supervisor.detach_router(link)

    def _take(self, link: RouterLink, report: control_pb2.RouterReport) -> None:
        if report.WhichOneof("report") == "applied":
            revision = report.applied.revision
            link.note_applied(revision)
            self._supervisor.tell(
                RoutesApplied(router_id=link.router_id, revision=revision)
            )


async def _send(link: RouterLink, context: grpc.aio.ServicerContext[Any, Any]) -> Never:
    while True:
        await context.write(wire.routes_to_proto(await link.next_table()))
