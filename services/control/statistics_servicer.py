"""ModelStatistics, which routers forward here, and what ``nereid stats`` asks for.

Source: Triton's statistics extension; the errors are its words.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import grpc

from protos import control_pb2, control_pb2_grpc, inference_pb2
from services.control.kept_metrics import KeptMetrics
from services.control.management_servicer import SERVICE
from services.control.model_registry import VersionKey
from services.control.route_table import routes_of
from services.control.statistics import Statistics
from services.control.statistics_totals import Counted
from services.control.supervisor import Supervisor
from services.core.errors import InvalidRequestError, ModelNotReadyError
from services.core.lifecycle import ModelState
from services.core.model_version import parse_version
from services.core.statistics_fields import (
    COMPUTE,
    EXECUTION_COUNT,
    INFERENCE_COUNT,
    Phase,
    ResponsePhase,
    batch_count_field,
    batch_ns_field,
    batch_size_of,
    count_field,
    ns_field,
    response_field,
    response_index_of,
)

_Context = grpc.aio.ServicerContext[Any, Any]
_Duration = inference_pb2.StatisticDuration
_NOTHING: Final = Counted()
Memory: TypeAlias = Sequence[tuple[str, int, int]]


class StatisticsServicer(control_pb2_grpc.StatisticsControlServicer):
    """Answers what was counted, of versions that are ready."""

    def __init__(
        self, supervisor: Supervisor, statistics: Statistics, metrics: KeptMetrics
    ) -> None:
        """Answer from ``statistics`` for the models of ``supervisor``.

        Args:
            supervisor: Knows which versions are ready.
            statistics: What routers count.
            metrics: What models count; reset together.
        """
        self._supervisor = supervisor
        self._metrics = metrics
        self._statistics = statistics

    async def ModelStatistics(
        self, request: inference_pb2.ModelStatisticsRequest, context: _Context
    ) -> inference_pb2.ModelStatisticsResponse:
        """Return the statistics of one model, or of all."""
        del context
        if not self._statistics.metrics.has_statistics:
            raise ModelNotReadyError("the server does not support model statistics")
        versions = self._versions(request.name, request.version)
        totals = await self._statistics.totals()
        return statistics_message(
            {key: totals.get(key, _NOTHING) for key in versions},
            {key: self._memory_of(key) for key in versions},
        )

    async def ResetStatistics(
        self, request: control_pb2.ResetStatisticsRequest, context: _Context
    ) -> control_pb2.ResetStatisticsResponse:
        """Set the counters of a model to zero, loaded or not."""
        del context
        versions = await self._statistics.reset(request.model)
        self._metrics.reset(request.model)
        known = {
            route.model for route in routes_of(self._supervisor.reconciler.registry)
        }
        if not versions and request.model not in known:
            raise InvalidRequestError(
                f"requested model '{request.model}' is not available"
            )
        return control_pb2.ResetStatisticsResponse(versions=versions)

    def methods(self) -> "grpc.GenericRpcHandler[Any, Any]":
        """Return the method of the public service as a server takes it."""
        handler = grpc.unary_unary_rpc_method_handler(
            self.ModelStatistics,
            inference_pb2.ModelStatisticsRequest.FromString,
            inference_pb2.ModelStatisticsResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(
            SERVICE, {"ModelStatistics": handler}
        )

    def _memory_of(self, key: VersionKey) -> Memory:
        """Return what a version took of each device when it was loaded."""
        generation = self._supervisor.reconciler.registry.serving(key)
        return generation.memory_usage if generation is not None else ()

    def _versions(self, name: str, version: str) -> list[VersionKey]:
        """Return the ready versions that a client asks for, in order.

        Raises:
            InvalidRequestError: there is none, or ``version`` is no number.
        """
        number = parse_version(version)
        ready = [
            (route.model, route.version)
            for route in routes_of(self._supervisor.reconciler.registry)
            if route.state is ModelState.READY
        ]
        if not name:
            return sorted(ready)
        of_model = sorted(key for key in ready if key[0] == name)
        if not of_model:
            raise InvalidRequestError(f"requested model '{name}' is not available")
        if number is None:
            return of_model
        if (name, number) not in of_model:
            raise InvalidRequestError(
                f"requested model version is not available for model '{name}'"
            )
        return [(name, number)]


def statistics_message(
    totals: Mapping[VersionKey, Counted], memory: Mapping[VersionKey, Memory]
) -> inference_pb2.ModelStatisticsResponse:
    """Return counters as the protocol's message, in their order.

    Args:
        totals: By version.
        memory: What each took: kind, device and bytes.
    """
    return inference_pb2.ModelStatisticsResponse(
        model_stats=[
            inference_pb2.ModelStatistics(
                name=model,
                version=str(version),
                last_inference=counted.last_inference_ms,
                inference_count=counted[INFERENCE_COUNT],
                execution_count=counted[EXECUTION_COUNT],
                inference_stats=inference_pb2.InferStatistics(
                    **{
                        phase.value: _Duration(
                            count=counted[count_field(phase)],
                            ns=counted[ns_field(phase)],
                        )
                        for phase in Phase
                    }
                ),
                batch_stats=[_batch(counted, rows) for rows in _batch_sizes(counted)],
                response_stats=_responses(counted),
                memory_usage=[
                    inference_pb2.MemoryUsage(type=kind, id=device, byte_size=size)
                    for kind, device, size in memory.get((model, version), ())
                ],
            )
            for (model, version), counted in totals.items()
        ]
    )


def _batch_sizes(counted: Counted) -> list[int]:
    sizes = map(batch_size_of, counted.counts)
    return sorted(size for size in sizes if size is not None)


def _batch(counted: Counted, rows: int) -> inference_pb2.InferBatchStatistics:
    executions = counted[batch_count_field(rows)]
    return inference_pb2.InferBatchStatistics(
        batch_size=rows,
        **{
            phase.value: _Duration(
                count=executions, ns=counted[batch_ns_field(rows, phase)]
            )
            for phase in COMPUTE
        },
    )


def _responses(counted: Counted) -> dict[str, inference_pb2.InferResponseStatistics]:
    indices = {response_index_of(name) for name in counted.counts} - {None}
    return {
        str(index): inference_pb2.InferResponseStatistics(
            **{
                phase.value: _Duration(
                    count=counted[response_field(index, phase, "count")],
                    ns=counted[response_field(index, phase, "ns")],
                )
                for phase in ResponsePhase
            }
        )
        for index in sorted(index for index in indices if index is not None)
    }
