"""What the Prometheus page shows: ``--metrics-config`` and its kin. Pure.

Source: the metrics of Triton, "Latencies", and its command line.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from services.core.flags import parse_bool

DEFAULT_QUANTILES: Final = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Which families there are.

    Attributes:
        counter_latencies: Durations as counters.
        histogram_latencies: The time to the first response of decoupled models.
        summary_latencies: Durations as summaries: routers then count distributions.
        summary_quantiles: Of the summaries, each 0 to 1.
        has_cpu: Load and memory of this host.
        has_gpu: Of its GPUs, if there are any.
        interval_s: How often CPU and GPU are looked at, at most.
        has_statistics: Whether routers count at all.
    """

    counter_latencies: bool = True
    histogram_latencies: bool = False
    summary_latencies: bool = False
    summary_quantiles: tuple[float, ...] = DEFAULT_QUANTILES
    has_cpu: bool = True
    has_gpu: bool = True
    interval_s: float = 2.0
    has_statistics: bool = True


def parse_metrics_config(
    settings: Iterable[str],
    *,
    has_cpu: bool = True,
    has_gpu: bool = True,
    interval_s: float = 2.0,
    has_statistics: bool = True,
) -> MetricsSettings:
    """Return what the flags say.

    Args:
        settings: ``KEY=VALUE`` each, the later one wins; unknown keys say nothing.
        has_cpu: ``--allow-cpu-metrics``.
        has_gpu: ``--allow-gpu-metrics``.
        interval_s: ``--metrics-interval-ms``.
        has_statistics: ``--allow-statistics``.

    Raises:
        ValueError: a setting has no ``=``, or a value makes no sense.
    """
    values = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(
                f"--metrics-config wants <setting>=<value>, not '{setting}'"
            )
        values[key.strip()] = value.strip()

    def is_on(key: str, *, default: bool) -> bool:
        return parse_bool(values[key]) if key in values else default

    quantiles = values.get("summary_quantiles")
    return MetricsSettings(
        counter_latencies=is_on("counter_latencies", default=True),
        histogram_latencies=is_on("histogram_latencies", default=False),
        summary_latencies=is_on("summary_latencies", default=False),
        summary_quantiles=_quantiles(quantiles) if quantiles else DEFAULT_QUANTILES,
        has_cpu=has_cpu,
        has_gpu=has_gpu,
        interval_s=interval_s,
        has_statistics=has_statistics,
    )


def _quantiles(text: str) -> tuple[float, ...]:
    """Read ``<quantile>:<error>,...``; our error is the same for all.

    Raises:
        ValueError: it is not of that form.
    """
    quantiles = []
    for pair in text.split(","):
        quantile, colon, error = pair.partition(":")
        try:
            value = float(quantile)
            float(error)
        except ValueError:
            colon = ""
        if not colon or not 0 <= value <= 1:
            raise ValueError(
                "summary_quantiles wants <quantile>:<error>,..., each 0 to 1, "
                f"not '{text}'"
            )
        quantiles.append(value)
    return tuple(quantiles)
