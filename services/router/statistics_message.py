"""Counters as the protocol's messages. Pure."""

from protos import inference_pb2 as pb
from services.router.route_table import Route
from services.router.statistics import Duration, ModelStatistics


def statistics_message(route: Route, counted: ModelStatistics) -> pb.ModelStatistics:
    """Return what was counted of ``route`` as an inference.ModelStatistics."""
    compute = counted.compute
    return pb.ModelStatistics(
        name=route.model,
        version=route.version_text,
        last_inference=counted.last_inference_ms,
        inference_count=counted.inference_count,
        execution_count=counted.execution_count,
        inference_stats=pb.InferStatistics(
            success=_duration(counted.success),
            fail=_duration(counted.fail),
            queue=_duration(counted.queue),
            compute_input=_duration(compute.compute_input),
            compute_infer=_duration(compute.compute_infer),
            compute_output=_duration(compute.compute_output),
            cache_hit=pb.StatisticDuration(),
            cache_miss=pb.StatisticDuration(),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=rows,
                compute_input=_duration(batch.compute_input),
                compute_infer=_duration(batch.compute_infer),
                compute_output=_duration(batch.compute_output),
            )
            for rows, batch in sorted(counted.batches.copy().items())
        ],
    )


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)
