"""The door for routers: one stream each."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Never

import grpc

from protos import control_pb2, control_pb2_grpc
from services.control import router_wire
from services.control.commands import SetStatistics
from services.control.events import RoutesApplied
from services.control.live_settings import LiveSettings
from services.control.on_demand import OnDemand
from services.control.process_use_wire import process_use_from_proto
from services.control.router_links import RouterLink
from services.control.shared_rate import Progress
from services.control.state_checkpoints import StateCheckpoints
from services.control.statistics import Statistics
from services.control.supervisor import Supervisor
from services.control.trace_wire import trace_from_proto
from services.core.errors import InvalidRequestError

_Context = grpc.aio.ServicerContext[Any, Any]


class RouterServicer(control_pb2_grpc.RouterControlServicer):
    """Brings routers their tables and their acknowledgements back."""

    def __init__(
        self,
        supervisor: Supervisor,
        statistics: Statistics,
        settings: SetStatistics,
        live: LiveSettings,
        on_demand: OnDemand | None = None,
        *,
        states: StateCheckpoints,
    ) -> None:
        """Serve ``supervisor``; reports go to ``statistics``.

        Args:
            supervisor: Knows the routes.
            statistics: Takes what routers count.
            settings: What they are told to count.
            live: Of the log and of traces; takes the traces.
            on_demand: Takes what routers say of models; None if nothing comes of it.
            states: Keeps the states of sequences.
        """
        self._states = states
        self._supervisor = supervisor
        self._statistics = statistics
        self._settings = settings
        self._live = live
        self._on_demand = on_demand

    async def Attach(  # type: ignore[override]  # it writes; the stub wants yields
        self,
        request_iterator: AsyncIterator[control_pb2.RouterReport],
        context: _Context,
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
            first.hello.router_id,
            first.hello.worker_endpoint,
            first.hello.revision,
        )
        link.tell(self._settings)
        self._live.greet_router(link)
        in_turn = asyncio.Lock()
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = (
                    tasks.create_task(_send_tables(link, context, in_turn)),
                    tasks.create_task(_send_orders(link, context, in_turn)),
                )
                async for report in request_iterator:
                    self._take(link, report)
                for task in sending:
                    task.cancel()
        finally:
            if self._supervisor.detach_router(link):
                self._statistics.forget_gauges(link.router_id)
                self._live.traces.lose(link.router_id)
                if self._on_demand is not None:
                    self._on_demand.forget(link.router_id)

    def _take(self, link: RouterLink, report: control_pb2.RouterReport) -> None:
        match report.WhichOneof("report"):
            case "applied":
                revision = report.applied.revision
                link.note_applied(revision)
                self._supervisor.tell(
                    RoutesApplied(router_id=link.router_id, revision=revision)
                )
            case "statistics":
                if report.statistics.HasField("process"):
                    use = process_use_from_proto(report.statistics.process)
                    link.use = use
                self._statistics.take(
                    link.router_id, router_wire.statistics_from_proto(report.statistics)
                )
            case "demand" if self._on_demand is not None:
                demand = router_wire.demand_from_proto(report.demand)
                self._on_demand.take(link.router_id, demand)
            case "state_checkpoint" | "state_request":
                self._take_state(link, report)
            case "trace_settings_applied":
                self._live.traces.note_applied(
                    link.router_id, report.trace_settings_applied.revision
                )
            case "trace_report":
                self._take_traces(link, report.trace_report)

    def _take_traces(self, link: RouterLink, report: control_pb2.TraceReport) -> None:
        traces = self._live.traces
        for session in report.sampled:
            traces.sampled(link.router_id, session)
        for each in report.progress:
            traces.counted(
                link.router_id,
                Progress(session=each.session, counted=each.counted, moves=each.moves),
            )
        for ended in report.ended:
            trace = trace_from_proto(ended.request)
            traces.ended(link.router_id, ended.session, trace)

    def _take_state(self, link: RouterLink, report: control_pb2.RouterReport) -> None:
        state = report.state_checkpoint
        if report.HasField("state_request"):
            self._states.fetch(link, report.state_request.key)
        elif state.is_over:
            self._states.forget(link, state.key)
        else:
            self._states.save(link, state.key, state.step, state.data, state.expires_ms)


async def _send_tables(
    link: RouterLink, context: _Context, in_turn: asyncio.Lock
) -> Never:
    while True:
        table = await link.next_table()
        async with in_turn:
            await context.write(router_wire.routes_to_proto(table))


async def _send_orders(
    link: RouterLink, context: _Context, in_turn: asyncio.Lock
) -> Never:
    while True:
        order = await link.orders.get()
        async with in_turn:
            await context.write(router_wire.router_order_to_proto(order))
