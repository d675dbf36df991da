"""The Prometheus page of each process: what of the whole it has done itself.

Control serves them all, from what routers and workers report: they have no door for
scrapers of their own, and need none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from services.control import inference_metrics, metrics, process_metrics
from services.control.inference_metrics import MeasuredVersion
from services.control.kept_metrics import KeptMetrics
from services.control.process_metrics import KnownProcess
from services.control.prometheus import Family, gauge
from services.control.router_links import RouterLink
from services.control.statistics import Statistics
from services.control.supervisor import Supervisor
from services.control.worker_links import WorkerLink
from services.core.errors import ModelNotFoundError
from services.core.process_use import process_use


@dataclass(slots=True, kw_only=True)
class ProcessPages:
    """Knows all processes.

    Attributes:
        supervisor: Has their streams.
        statistics: What routers count.
        model_metrics: What models count.
    """

    supervisor: Supervisor
    statistics: Statistics
    model_metrics: KeptMetrics

    def processes(self) -> Iterator[KnownProcess]:
        """Yield control, the routers and the workers, as far as they have told."""
        yield KnownProcess(role="control", use=process_use())
        for router in self.supervisor.routers.links():
            yield KnownProcess(role="router", name=router.router_id, use=router.use)
        for worker in self.supervisor.workers.links():
            name = worker.worker.worker_id
            yield KnownProcess(role="worker", name=name, use=worker.use)

    async def page(self, role: str, name: str) -> list[Family]:
        """Return the page of one process.

        Args:
            role: control, router or worker.
            name: Its id, or its number among those of its role, the oldest first.

        Raises:
            ModelNotFoundError: there is no such process.
        """
        await self.statistics.collect()
        if role == "control" and not name:
            return [*process_metrics.families_of(process_use())]
        if role == "router":
            routers = self.supervisor.routers.links()
            names = [link.router_id for link in routers]
            return self._of_router(routers[_place(role, name, names)])
        if role == "worker":
            workers = self.supervisor.workers.links()
            names = [link.worker.worker_id for link in workers]
            return self._of_worker(workers[_place(role, name, names)])
        raise _unknown(role, name)

    def _of_router(self, link: RouterLink) -> list[Family]:
        counted = self.statistics.of_router(link.router_id)
        versions = [
            MeasuredVersion(key=key, counted=of_version, waiting=counted.waiting[key])
            for key, of_version in sorted(counted.totals.items())
        ]
        # Windows and caches of one router: the former control has for all together.
        settings = replace(self.statistics.metrics, summary_latencies=False)
        return [
            *process_metrics.families_of(link.use),
            *inference_metrics.families(versions, settings),
            *metrics.families_of_router(counted.loop_lag_ns / 1e9, counted.cache),
        ]

    def _of_worker(self, link: WorkerLink) -> list[Family]:
        worker = link.worker
        reconciler = self.supervisor.reconciler
        instances = sum(
            len(generation.placed.get(worker.worker_id, ()))
            for generation in reconciler.registry
        )
        return [
            *process_metrics.families_of(link.use),
            gauge("nereid_worker_instances", "Placed model instances", ({}, instances)),
            *self.model_metrics.families_of(worker),
        ]


def _place(role: str, name: str, names: Sequence[str]) -> int:
    """Return where among ``names`` a process stands.

    Raises:
        ModelNotFoundError: it does not.
    """
    if name in names:
        return names.index(name)
    if name.isdecimal() and int(name) < len(names):
        return int(name)
    raise _unknown(role, name)


def _unknown(role: str, name: str) -> ModelNotFoundError:
    return ModelNotFoundError(f"there is no process '{role}/{name}'")
