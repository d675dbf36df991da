"""The ``nv_inference`` families and what belongs to them. Pure.

Source: names, texts and labels are those of Triton's metrics; the values come from
the same counters as its statistics extension.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from services.control.metrics_settings import MetricsSettings
from services.control.model_registry import VersionKey
from services.control.prometheus import (
    Family,
    Labels,
    Sample,
    counter,
    gauge,
    histogram_samples,
)
from services.control.statistics_totals import Counted
from services.core.statistics_fields import (
    EXECUTION_COUNT,
    FIRST_RESPONSE_BOUNDS_MS,
    FIRST_RESPONSE_FAMILY,
    FIRST_RESPONSE_SUM_FIELD,
    INFERENCE_COUNT,
    LOST_EXECUTIONS,
    QUARANTINED,
    RETRIES,
    FailureReason,
    Phase,
    ShadowOutcome,
    batch_count_field,
    batch_size_of,
    count_field,
    failure_field,
    first_response_field,
    ns_field,
    shadow_field,
)

_COUNTERS: Final = (
    (
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        count_field(Phase.SUCCESS),
    ),
    (
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        INFERENCE_COUNT,
    ),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        EXECUTION_COUNT,
    ),
    (
        "nereid_request_retries_total",
        "Number of requests that ran again because their worker was lost",
        RETRIES,
    ),
    (
        "nereid_lost_executions_total",
        "Number of batches whose worker was lost while it executed them",
        LOST_EXECUTIONS,
    ),
    (
        "nereid_request_quarantined_total",
        "Number of requests that were found to bring down workers",
        QUARANTINED,
    ),
)
_UNCACHED: Final = "(does not include cached requests)"
# The word in the family's name, the phase, and the text.
_LATENCIES: Final = (
    (
        "request",
        Phase.SUCCESS,
        "inference request duration in microseconds (includes cached requests)",
    ),
    (
        "queue",
        Phase.QUEUE,
        "inference queuing duration in microseconds (includes cached requests)",
    ),
    (
        "compute_input",
        Phase.COMPUTE_INPUT,
        f"compute input duration in microseconds {_UNCACHED}",
    ),
    (
        "compute_infer",
        Phase.COMPUTE_INFER,
        f"compute inference duration in microseconds {_UNCACHED}",
    ),
    (
        "compute_output",
        Phase.COMPUTE_OUTPUT,
        f"inference compute output duration in microseconds {_UNCACHED}",
    ),
)
# The phase, its word in one and in many.
_CACHE: Final = (
    (Phase.CACHE_HIT, "hit", "hits"),
    (Phase.CACHE_MISS, "miss", "misses"),
)
_BATCH_SIZE_BOUNDS: Final = tuple(2**power for power in range(11))
LATENCY_PHASES: Final = tuple(phase for _, phase, _ in _LATENCIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredVersion:
    """One version that is ready, and what was measured of it.

    Attributes:
        key: Its model and number.
        counted: All that was counted.
        waiting: Requests that wait for execution.
        load_s: How long its last load took; None if that is not known.
        memory: What it took when it was loaded: CPU or GPU, device, bytes.
        tags: Labels from its configuration.
        gpu_uuid: Of the GPU that executes it; "" without one, or with several.
        has_cache: Whether its configuration asks for the response cache.
        is_decoupled: Whether a request may have any number of responses.
        first_response_bounds_ms: Buckets of that histogram, ascending.
        quantiles_ns: By phase, at the quantiles of the settings.
    """

    key: VersionKey
    counted: Counted = field(default_factory=Counted)
    waiting: int = 0
    load_s: float | None = None
    memory: Sequence[tuple[str, int, int]] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    gpu_uuid: str = ""
    has_cache: bool = False
    is_decoupled: bool = False
    first_response_bounds_ms: Sequence[float] = FIRST_RESPONSE_BOUNDS_MS
    quantiles_ns: Mapping[Phase, Sequence[float | None]] = field(default_factory=dict)

    @property
    def labels(self) -> Labels:
        """Of all its series."""
        model, version = self.key
        gpu = {"gpu_uuid": self.gpu_uuid} if self.gpu_uuid else {}
        tags = {f"_{name}": value for name, value in self.tags.items()}
        return {**gpu, "model": model, "version": str(version), **tags}


def families(
    versions: Sequence[MeasuredVersion], settings: MetricsSettings
) -> Iterator[Family]:
    """Yield the families of all ``versions``."""
    if settings.has_statistics:
        yield from _counted(versions, settings)
    yield gauge(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        *((each.labels, each.waiting) for each in versions),
    )
    yield gauge(
        "nv_model_load_duration_secs",
        "Model load time in seconds",
        *((v.labels, v.load_s) for v in versions if v.load_s is not None),
    )
    yield gauge(
        "nereid_model_memory_bytes",
        "What the model took when it was loaded",
        *(
            ({**each.labels, "memory": kind, "device": str(device)}, size)
            for each in versions
            for kind, device, size in each.memory
        ),
    )


def _counted(
    versions: Sequence[MeasuredVersion], settings: MetricsSettings
) -> Iterator[Family]:
    for name, text, field_name in _COUNTERS:
        samples = ((each.labels, each.counted[field_name]) for each in versions)
        yield counter(name, text, *samples)
    yield _failures(versions)
    yield _shadow_copies(versions)
    if settings.counter_latencies:
        yield from _durations(versions)
    yield from _cache_counters([v for v in versions if v.has_cache])
    if settings.histogram_latencies:
        yield _first_responses([v for v in versions if v.is_decoupled])
    if settings.summary_latencies:
        yield from _summaries(versions, settings)
    yield _batch_sizes(versions)


def _failures(versions: Iterable[MeasuredVersion]) -> Family:
    return counter(
        "nv_inference_request_failure",
        "Number of failed inference requests, all batch sizes",
        *(
            ({**each.labels, "reason": r.value}, each.counted[failure_field(r)])
            for each in versions
            for r in FailureReason
        ),
    )


def _shadow_copies(versions: Iterable[MeasuredVersion]) -> Family:
    """Return what became of copies, for the versions that were ever a shadow."""
    outcomes = {each: shadow_field(each) for each in ShadowOutcome}
    return counter(
        "nereid_shadow_copies_total",
        "Number of requests copied to this shadow version, by what became of them",
        *(
            ({**version.labels, "outcome": outcome.value}, version.counted[field_name])
            for version in versions
            if any(map(version.counted.__getitem__, outcomes.values()))
            for outcome, field_name in outcomes.items()
        ),
    )


def _durations(versions: Sequence[MeasuredVersion]) -> Iterator[Family]:
    for word, phase, text in _LATENCIES:
        yield counter(
            f"nv_inference_{word}_duration_us",
            f"Cumulative {text}",
            *((each.labels, _us(each.counted, phase)) for each in versions),
        )


def _cache_counters(versions: Sequence[MeasuredVersion]) -> Iterator[Family]:
    for phase, word, words in _CACHE:
        yield counter(
            f"nv_cache_num_{words}_per_model",
            f"Number of cache {words} per model",
            *((each.labels, each.counted[count_field(phase)]) for each in versions),
        )
        yield counter(
            f"nv_cache_{word}_duration_per_model",
            f"Total cache {word} duration per model, in microseconds",
            *((each.labels, _us(each.counted, phase)) for each in versions),
        )


def _first_responses(versions: Iterable[MeasuredVersion]) -> Family:
    samples: list[Sample] = []
    for each in versions:
        bounds = (*each.first_response_bounds_ms, math.inf)
        counts = {b: each.counted[first_response_field(b)] for b in bounds}
        total_ms = each.counted[FIRST_RESPONSE_SUM_FIELD] / 1000
        samples += histogram_samples(each.labels, counts, total_ms)
    return Family(
        name=FIRST_RESPONSE_FAMILY,
        text="Duration from request to first response in milliseconds",
        kind="histogram",
        samples=tuple(samples),
    )


def _summaries(
    versions: Sequence[MeasuredVersion], settings: MetricsSettings
) -> Iterator[Family]:
    for word, phase, text in _LATENCIES:
        # Triton has no summary of whole requests for models with a cache.
        shown = [v for v in versions if phase is not Phase.SUCCESS or not v.has_cache]
        name = f"nv_inference_{word}_summary_us"
        yield _summary(name, f"Summary of {text}", shown, phase, settings)
    cached = [each for each in versions if each.has_cache]
    for phase, word, _ in _CACHE:
        yield _summary(
            f"nv_cache_{word}_summary_per_model",
            f"Summary of cache {word} duration per model, in microseconds",
            cached,
            phase,
            settings,
        )


def _summary(
    name: str,
    text: str,
    versions: Iterable[MeasuredVersion],
    phase: Phase,
    settings: MetricsSettings,
) -> Family:
    samples: list[Sample] = []
    for each in versions:
        count, total = each.counted[count_field(phase)], _us(each.counted, phase)
        samples += (
            Sample(labels=each.labels, value=count, suffix="_count"),
            Sample(labels=each.labels, value=total, suffix="_sum"),
        )
        nothing = [None] * len(settings.summary_quantiles)
        durations = each.quantiles_ns.get(phase, nothing)
        for quantile, ns in zip(settings.summary_quantiles, durations, strict=True):
            value = math.nan if ns is None else ns / 1000
            labels = {**each.labels, "quantile": f"{quantile:g}"}
            samples.append(Sample(labels=labels, value=value))
    return Family(name=name, text=text, kind="summary", samples=tuple(samples))


def _batch_sizes(versions: Iterable[MeasuredVersion]) -> Family:
    samples: list[Sample] = []
    for each in versions:
        counts = dict.fromkeys(map(float, _BATCH_SIZE_BOUNDS), 0)
        total = 0
        for size in map(batch_size_of, each.counted.counts):
            if size is not None:
                executions = each.counted[batch_count_field(size)]
                at = bisect_left(_BATCH_SIZE_BOUNDS, size)
                bound = (*_BATCH_SIZE_BOUNDS, math.inf)[at]
                counts[bound] = counts.get(bound, 0) + executions
                total += size * executions
        samples += histogram_samples(each.labels, counts, total)
    return Family(
        name="nereid_batch_size",
        text="Rows of the executed batches",
        kind="histogram",
        samples=tuple(samples),
    )


def _us(counted: Counted, phase: Phase) -> int:
    return counted[ns_field(phase)] // 1000
