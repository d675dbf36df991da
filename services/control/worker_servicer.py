"""The door for workers: one stream each."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, Never

import grpc

from protos import control_pb2, control_pb2_grpc
from services.control import worker_wire
from services.control.commands import FileInspected
from services.control.kept_metrics import KeptMetrics
from services.control.live_settings import LiveSettings
from services.control.process_use_wire import process_use_from_proto
from services.control.supervisor import Supervisor
from services.control.worker_links import WorkerLink
from services.core.errors import InvalidRequestError

# A stream whose connection broke looks like one that was closed, until the
# transport says otherwise.
_CANCELLATION_LAG_S: Final = 0.2


class WorkerServicer(control_pb2_grpc.WorkerControlServicer):
    """Brings workers' reports to the supervisor and its commands to them."""

    def __init__(
        self, supervisor: Supervisor, settings: LiveSettings, metrics: KeptMetrics
    ) -> None:
        """Serve ``supervisor``.

        Args:
            supervisor: Takes what becomes of models.
            settings: What workers are told when they come.
            metrics: Takes what models count themselves.
        """
        self._supervisor = supervisor
        self._settings = settings
        self._metrics = metrics

    async def Attach(  # type: ignore[override]  # it writes; the stub wants yields
        self,
        request_iterator: AsyncIterator[control_pb2.WorkerReport],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """Serve one worker as long as its stream lives."""
        first = await anext(request_iterator, None)
        if first is None or first.WhichOneof("report") != "hello":
            raise InvalidRequestError("a worker's first report must be its hello")
        link = self._supervisor.attach_worker(
            worker_wire.worker_from_proto(first.hello),
            frozenset(first.hello.generations),
            worker_wire.described_generations(first.hello),
        )
        self._metrics.joined(link.worker)
        self._settings.greet_worker(link)
        is_goodbye = False
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(_send(link, context))
                async for report in request_iterator:
                    self._take(link, report)
                await asyncio.sleep(_CANCELLATION_LAG_S)
                is_goodbye = True
                sending.cancel()
        finally:
            if self._supervisor.detach_worker(link, is_goodbye=is_goodbye):
                self._metrics.left(link.worker, is_goodbye=is_goodbye)

    def _take(self, link: WorkerLink, report: control_pb2.WorkerReport) -> None:
        kind = report.WhichOneof("report")
        if kind == "metrics":
            shown = report.metrics
            version = shown.model, shown.version
            families = worker_wire.model_metrics_from_proto(shown)
            self._metrics.take(link.worker, shown.source, version, families)
            return
        if kind == "process":
            link.use = process_use_from_proto(report.process)
            return
        if kind == "readiness":
            answer = worker_wire.readiness_from_proto(report.readiness)
            self._supervisor.take_readiness(answer)
            return
        event = worker_wire.report_from_proto(link.worker, report)
        if isinstance(event, FileInspected):
            self._supervisor.take_inspection(event)
        elif event is not None:
            self._supervisor.tell(event)


async def _send(link: WorkerLink, context: grpc.aio.ServicerContext[Any, Any]) -> Never:
    while True:
        await context.write(worker_wire.order_to_proto(await link.orders.get()))
