"""Serves the Prometheus page as an HTTP body."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import grpc
from google.api.httpbody_pb2 import HttpBody

from protos import rest_pb2, rest_pb2_grpc
from protos.model_config_pb2 import ModelConfig
from services.control import demand_metrics, inference_metrics, metrics, process_metrics
from services.control.host import Host
from services.control.inference_metrics import LATENCY_PHASES, MeasuredVersion
from services.control.kept_metrics import KeptMetrics
from services.control.model_registry import VersionKey
from services.control.on_demand import OnDemand
from services.control.process_pages import ProcessPages
from services.control.prometheus import CONTENT_TYPE, Family, render
from services.control.route_table import routes_of
from services.control.statistics import Statistics
from services.control.statistics_totals import STACK, Counted, Totals
from services.control.supervisor import Supervisor
from services.core.clock import Clock
from services.core.lifecycle import ModelState
from services.core.statistics_fields import (
    FIRST_RESPONSE_BOUNDS_MS,
    FIRST_RESPONSE_FAMILY,
    Phase,
)

_MOST_CONFIGS = 4096


class MetricsServicer(rest_pb2_grpc.MetricsServiceServicer):
    """One page for the whole stack, and one for each of its processes."""

    def __init__(
        self,
        supervisor: Supervisor,
        statistics: Statistics,
        model_metrics: KeptMetrics,
        clock: Clock,
        on_demand: OnDemand | None = None,
    ) -> None:
        """Show what ``supervisor`` and ``statistics`` know.

        Args:
            supervisor: Knows versions, workers and routers.
            statistics: What was counted, and what is to be shown.
            model_metrics: What models count themselves.
            clock: For the summaries' windows.
            on_demand: Loads what is asked for, if anybody does.
        """
        self._supervisor = supervisor
        self._statistics = statistics
        self._model_metrics = model_metrics
        self._settings = statistics.metrics
        self._clock = clock
        self._on_demand = on_demand
        self._host = Host(statistics.metrics)
        self._pages = ProcessPages(
            supervisor=supervisor, statistics=statistics, model_metrics=model_metrics
        )

    async def Metrics(
        self,
        request: rest_pb2.MetricsRequest,
        context: grpc.aio.ServicerContext[Any, Any],  # noqa: ARG002
    ) -> HttpBody:
        """Return the page of the whole stack, or of one process."""
        if request.process:
            families = await self._pages.page(request.process, request.id)
        else:
            families = await self._whole()
        return HttpBody(content_type=CONTENT_TYPE, data=render(families).encode())

    async def _whole(self) -> list[Family]:
        totals = await self._statistics.totals()
        families: list[Family] = [
            *inference_metrics.families(self._versions(totals), self._settings),
            *metrics.families(self._stack(totals)),
            *self._host.families(self._clock.now_ns()),
            *process_metrics.families(self._pages.processes()),
        ]
        if self._on_demand is not None:
            families += demand_metrics.families(self._on_demand)
        families += self._model_metrics.families(family.name for family in families)
        return families

    def _stack(self, totals: Totals) -> metrics.Measured:
        supervisor = self._supervisor
        return metrics.Measured(
            routes=routes_of(supervisor.reconciler.registry),
            worker_count=supervisor.worker_count,
            router_count=supervisor.router_count,
            loop_lags_s=self._statistics.loop_lags_s(),
            cache=self._statistics.cache(),
            counted=totals.get(STACK, Counted()),
        )

    def _versions(self, totals: Totals) -> list[MeasuredVersion]:
        """Measure the versions that are ready."""
        waiting = self._statistics.waiting()
        load_durations_s = self._supervisor.load_durations.seconds()
        versions = []
        for route in routes_of(self._supervisor.reconciler.registry):
            if route.state is not ModelState.READY:
                continue
            key = (route.model, route.version)
            config = _config(route.config)
            versions.append(
                MeasuredVersion(
                    key=key,
                    counted=totals.get(key, Counted()),
                    waiting=waiting.get(key, 0),
                    load_s=load_durations_s.get(key),
                    tags=dict(config.metric_tags),
                    memory=self._memory_of(key),
                    gpu_uuid=self._gpu_of(key),
                    has_cache=config.response_cache.enable,
                    is_decoupled=config.model_transaction_policy.decoupled,
                    first_response_bounds_ms=_first_response_bounds_ms(config),
                    quantiles_ns=self._quantiles_ns(key),
                )
            )
        return versions

    def _quantiles_ns(self, key: VersionKey) -> Mapping[Phase, Sequence[float | None]]:
        settings = self._settings
        if not settings.summary_latencies:
            return {}
        now_ns = self._clock.now_ns()
        quantiles = self._statistics.windows.quantiles
        return {
            phase: quantiles(key, phase, settings.summary_quantiles, now_ns)
            for phase in LATENCY_PHASES
        }

    def _memory_of(self, key: VersionKey) -> Sequence[tuple[str, int, int]]:
        generation = self._supervisor.reconciler.registry.serving(key)
        return generation.memory_usage if generation else ()

    def _gpu_of(self, key: VersionKey) -> str:
        """Return the UUID of the only GPU that serves a version, "" if there is none.

        What is counted is counted for all instances together.
        """
        reconciler = self._supervisor.reconciler
        generation = reconciler.registry.serving(key)
        placed = generation.placed if generation else {}
        uuids = {
            worker.device_uuid
            for worker in reconciler.workers
            if worker.worker_id in placed
        }
        return uuids.pop() if len(uuids) == 1 else ""


@lru_cache(_MOST_CONFIGS)
def _config(message: bytes) -> ModelConfig:
    return ModelConfig.FromString(message)


def _first_response_bounds_ms(config: ModelConfig) -> Sequence[float]:
    for control in config.model_metrics.metric_control:
        if control.metric_identifier.family == FIRST_RESPONSE_FAMILY:
            return tuple(control.histogram_options.buckets)
    return FIRST_RESPONSE_BOUNDS_MS
