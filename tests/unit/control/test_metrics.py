"""The Prometheus page: what it shows, and that nothing breaks its lines."""

import dataclasses
import math

import pytest

from services.control import inference_metrics, metrics
from services.control.inference_metrics import MeasuredVersion
from services.control.load_durations import LoadDurations
from services.control.metrics_settings import MetricsSettings, parse_metrics_config
from services.control.prometheus import (
    Family,
    Sample,
    counter,
    gauge,
    histogram_samples,
    render,
)
from services.control.route_table import VersionRoute
from services.control.statistics_totals import CacheState, Counted
from services.core.lifecycle import ModelState
from services.core.statistics_fields import Phase

COUNTED = Counted(
    counts={
        "success.count": 3,
        "success.ns": 5_999_999,
        "queue.count": 3,
        "queue.ns": 1_000,
        "fail.count": 2,
        "fail.BACKEND": 2,
        "inference_count": 7,
        "execution_count": 2,
        "compute_infer.count": 3,
        "compute_infer.ns": 4_000,
        "batch.3.count": 1,
        "batch.4.count": 1,
        "retries": 1,
    }
)


class HandClock:
    """Time as the test sets it."""

    def __init__(self) -> None:
        self.at_ns = 0

    def now_ns(self) -> int:
        return self.at_ns


def page(version: MeasuredVersion, settings: MetricsSettings | None = None) -> str:
    return render(inference_metrics.families([version], settings or MetricsSettings()))


def lines(
    version: MeasuredVersion, settings: MetricsSettings | None = None
) -> set[str]:
    return set(page(version, settings).splitlines())


def measured(**fields: object) -> MeasuredVersion:
    return MeasuredVersion(key=("m", 1), counted=COUNTED, **fields)  # type: ignore[arg-type]


def test_the_page_counts_states_workers_and_routers() -> None:
    text = render(
        metrics.families(
            metrics.Measured(
                routes=(
                    VersionRoute(model="m", version=1, state=ModelState.READY),
                    VersionRoute(model="m", version=2, state=ModelState.READY),
                    VersionRoute(model="n", version=1, state=ModelState.UNAVAILABLE),
                ),
                worker_count=2,
                counted=Counted(counts={"worker_losses": 3, "worker_restarts": 2}),
                router_count=1,
                loop_lags_s={"r1": 0.25},
            )
        )
    )
    assert text.endswith("\n")
    assert {
        'nereid_models{state="READY"} 2',
        'nereid_models{state="UNAVAILABLE"} 1',
        'nereid_models{state="LOADING"} 0',
        "nereid_workers 2",
        "nereid_worker_losses_total 3",
        "nereid_worker_restarts_total 2",
        "nereid_routers 1",
        'nereid_router_loop_lag_seconds{router="r1"} 0.25',
        "# TYPE nereid_worker_losses_total counter",
        "# TYPE nereid_worker_restarts_total counter",
    } <= set(text.splitlines())


def test_the_caches_of_all_routers_are_shown_together() -> None:
    one = CacheState(
        capacity_bytes=100,
        size_bytes=50,
        entries=1,
        hits=2,
        misses=3,
        evictions=4,
        lookup_ns=5_999,
        insertion_ns=6_000,
    )
    without = metrics.Measured(routes=(), worker_count=0, router_count=2)
    found = render(metrics.families(dataclasses.replace(without, cache=one + one)))
    assert {
        "nv_cache_util 0.5",
        "nv_cache_num_entries 2",
        "nv_cache_num_hits 4",
        "nv_cache_num_misses 6",
        "nv_cache_num_lookups 10",
        "nv_cache_num_evictions 8",
        "nv_cache_lookup_duration 11",
        "nv_cache_insertion_duration 12",
    } <= set(found.splitlines())
    assert "nv_cache" not in render(metrics.families(without))
    nothing = dataclasses.replace(without, cache=CacheState())
    assert "nv_cache_util 0" in render(metrics.families(nothing)).splitlines()


def test_a_label_cannot_break_its_line() -> None:
    text = render([gauge("g", "text", ({"model": 'a"\n\\'}, 1.0))])
    assert text.splitlines()[-1] == r'g{model="a\"\n\\"} 1'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**63, "9223372036854775808"),
        (0.5, "0.5"),
        (1e-7, "1e-07"),
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
    ],
)
def test_numbers_are_written_as_prometheus_reads_them(value: float, text: str) -> None:
    assert render([counter("c", "", ({}, value))]).splitlines()[-1] == f"c {text}"


def test_a_family_without_series_is_left_out() -> None:
    assert render([gauge("g", "nothing")]) == ""


def test_buckets_of_a_histogram_hold_all_below_them() -> None:
    samples = histogram_samples({}, {1.0: 2, 5.0: 0, 10.0: 1}, total=12)
    family = Family(name="h", text="", kind="histogram", samples=tuple(samples))
    assert render([family]).splitlines()[2:] == [
        'h_bucket{le="1"} 2',
        'h_bucket{le="5"} 2',
        'h_bucket{le="10"} 3',
        'h_bucket{le="+Inf"} 3',
        "h_sum 12",
        "h_count 3",
    ]


def test_a_version_shows_its_counters_in_tritons_names_and_microseconds() -> None:
    assert {
        'nv_inference_request_success{model="m",version="1"} 3',
        'nv_inference_request_failure{model="m",version="1",reason="BACKEND"} 2',
        'nv_inference_request_failure{model="m",version="1",reason="OTHER"} 0',
        'nv_inference_count{model="m",version="1"} 7',
        'nv_inference_exec_count{model="m",version="1"} 2',
        'nv_inference_request_duration_us{model="m",version="1"} 5999',
        'nv_inference_compute_infer_duration_us{model="m",version="1"} 4',
        'nv_inference_pending_request_count{model="m",version="1"} 5',
        'nv_model_load_duration_secs{model="m",version="1"} 0.25',
        'nereid_request_retries_total{model="m",version="1"} 1',
        'nereid_batch_size_bucket{model="m",version="1",le="2"} 0',
        'nereid_batch_size_bucket{model="m",version="1",le="4"} 2',
        'nereid_batch_size_sum{model="m",version="1"} 7',
        'nereid_batch_size_count{model="m",version="1"} 2',
    } <= lines(measured(waiting=5, load_s=0.25))


def test_batches_above_the_largest_bucket_are_counted_in_the_last() -> None:
    counted = Counted(counts={"batch.1025.count": 2})
    found = lines(MeasuredVersion(key=("m", 1), counted=counted))
    assert 'nereid_batch_size_bucket{model="m",version="1",le="1024"} 0' in found
    assert 'nereid_batch_size_bucket{model="m",version="1",le="+Inf"} 2' in found


def test_tags_and_the_gpu_are_labels_of_every_series() -> None:
    text = page(measured(tags={"team": "a"}, gpu_uuid="GPU-1"))
    assert (
        'nv_inference_count{gpu_uuid="GPU-1",model="m",version="1",_team="a"} 7' in text
    )


def test_what_a_version_took_is_shown_for_each_device() -> None:
    memory = (("CPU", 0, 10), ("GPU", 1, 20))
    labels = 'model="m",version="1"'
    assert {
        f'nereid_model_memory_bytes{{{labels},memory="CPU",device="0"}} 10',
        f'nereid_model_memory_bytes{{{labels},memory="GPU",device="1"}} 20',
    } <= lines(measured(memory=memory))


def test_durations_as_counters_can_be_switched_off() -> None:
    assert "duration_us" not in page(
        measured(), MetricsSettings(counter_latencies=False)
    )


def test_the_caches_families_are_there_for_versions_that_use_it() -> None:
    assert "nv_cache" not in page(measured())
    assert {
        'nv_cache_num_hits_per_model{model="m",version="1"} 0',
        'nv_cache_miss_duration_per_model{model="m",version="1"} 0',
    } <= lines(measured(has_cache=True))


def test_summaries_have_counts_from_the_counters_and_quantiles_of_the_last_minute() -> (
    None
):
    settings = MetricsSettings(summary_latencies=True, summary_quantiles=(0.5, 0.99))
    found = lines(measured(quantiles_ns={Phase.QUEUE: (1500.0, None)}), settings)
    assert {
        'nv_inference_queue_summary_us_count{model="m",version="1"} 3',
        'nv_inference_queue_summary_us_sum{model="m",version="1"} 1',
        'nv_inference_queue_summary_us{model="m",version="1",quantile="0.5"} 1.5',
        'nv_inference_queue_summary_us{model="m",version="1",quantile="0.99"} NaN',
        'nv_inference_request_summary_us_count{model="m",version="1"} 3',
    } <= found
    cached = page(measured(has_cache=True), settings)
    assert "nv_inference_request_summary_us" not in cached
    assert "nv_cache_hit_summary_per_model_count" in cached


def test_first_responses_have_the_buckets_of_the_models_configuration() -> None:
    counted = Counted(
        counts={
            "first_response.le.10": 2,
            "first_response.le.inf": 1,
            "first_response.us": 30_500,
        }
    )
    version = MeasuredVersion(
        key=("m", 1),
        counted=counted,
        is_decoupled=True,
        first_response_bounds_ms=(10.0, 20.0),
    )
    name = "nv_inference_first_response_histogram_ms"
    assert name not in page(version)
    assert {
        f'{name}_bucket{{model="m",version="1",le="10"}} 2',
        f'{name}_bucket{{model="m",version="1",le="20"}} 2',
        f'{name}_bucket{{model="m",version="1",le="+Inf"}} 3',
        f'{name}_sum{{model="m",version="1"}} 30.5',
    } <= lines(version, MetricsSettings(histogram_latencies=True))


def test_without_statistics_the_page_has_no_counts_but_what_is_there_now() -> None:
    version = MeasuredVersion(key=("m", 1), waiting=2, load_s=1.5)
    settings = MetricsSettings(has_statistics=False, summary_latencies=True)
    names = {family.name for family in inference_metrics.families([version], settings)}
    assert names == {
        "nv_inference_pending_request_count",
        "nv_model_load_duration_secs",
        "nereid_model_memory_bytes",
    }


def test_a_sample_stands_behind_its_familys_suffix() -> None:
    sample = Sample(labels={}, value=1, suffix="_sum")
    family = Family(name="s", text="t", kind="summary", samples=(sample,))
    assert render([family]) == "# HELP s t\n# TYPE s summary\ns_sum 1\n"


def test_the_metrics_config_is_read_in_tritons_forms() -> None:
    assert parse_metrics_config([]) == MetricsSettings()
    given = parse_metrics_config(
        [
            "counter_latencies=false",
            "histogram_latencies=true",
            "summary_latencies=1",
            "summary_quantiles=0.5:0.05,0.999:0.001",
            "of_a_later_release=7",
        ],
        has_gpu=False,
        interval_s=0.5,
    )
    assert given == MetricsSettings(
        counter_latencies=False,
        histogram_latencies=True,
        summary_latencies=True,
        summary_quantiles=(0.5, 0.999),
        has_gpu=False,
        interval_s=0.5,
    )


@pytest.mark.parametrize(
    "setting",
    [
        "summary_latencies",
        "summary_latencies=maybe",
        "summary_quantiles=0.5",
        "summary_quantiles=2:0.1",
        "summary_quantiles=x:0.1",
        "summary_quantiles=0.5:y",
    ],
)
def test_a_metrics_setting_that_makes_no_sense_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_metrics_config([setting])


def test_a_load_lasts_from_the_first_order_to_its_end() -> None:
    clock = HandClock()
    durations = LoadDurations(clock)
    durations.begin(("m", 1))
    clock.at_ns = 500_000_000
    durations.begin(("m", 1))  # the second of two workers
    clock.at_ns = 2_000_000_000
    durations.end(("m", 1), is_success=True)
    assert durations.seconds() == {("m", 1): 2.0}


def test_a_load_that_failed_leaves_the_last_good_duration() -> None:
    clock = HandClock()
    durations = LoadDurations(clock)
    durations.begin(("m", 1))
    clock.at_ns = 1_000_000_000
    durations.end(("m", 1), is_success=True)
    durations.begin(("m", 1))
    clock.at_ns = 9_000_000_000
    durations.end(("m", 1), is_success=False)
    assert durations.seconds() == {("m", 1): 1.0}
