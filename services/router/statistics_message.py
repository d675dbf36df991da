"""Counters as the protocol's messages. Pure."""

from protos import inference_pb2 as pb
from services.router.route_table import Route
from services.router.statistics import ComputeDurations, Duration, ModelStatistics


def statistics_message(route: Route, counted: ModelStatistics) -> pb.ModelStatistics:
    """Return what was counted of ``route`` as an inference.ModelStatistics."""
    others = counted.others
    fail = Duration(others["fail.count"], others["fail.ns"])
    return pb.ModelStatistics(
        name=route.model,
        version=route.version_text,
        last_inference=counted.last_inference_ms,
        inference_count=counted.inference_count,
        execution_count=counted.execution_count,
        inference_stats=pb.InferStatistics(
            success=_duration(counted.success),
            fail=_duration(fail),
            queue=_duration(counted.queue),
            cache_hit=pb.StatisticDuration(),
            cache_miss=pb.StatisticDuration(),
            **_compute(counted.compute),
        ),
        batch_stats=[
            pb.InferBatchStatistics(batch_size=rows, **_compute(batch))
            for rows, batch in sorted(counted.batches.copy().items())
        ],
    )


def _compute(compute: ComputeDurations) -> dict[str, pb.StatisticDuration]:
    names = ("compute_input", "compute_infer", "compute_output")
    return {
        name: pb.StatisticDuration(count=compute.count, ns=ns)
        for name, ns in zip(names, compute.ns, strict=True)
    }


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)
