"""Metrics of models' own: many instances, one page."""

from hypothesis import given
from hypothesis import strategies as st

from protos import control_pb2
from services.control import wire
from services.control.model_metrics import ModelMetrics
from services.control.prometheus import Family, Sample, counter, gauge, render


def counted(value: float, **labels: str) -> tuple[Family, ...]:
    return (counter("requests", "How many", (labels, value)),)


def lines(metrics: ModelMetrics) -> list[str]:
    page = render(metrics.families()).splitlines()
    return [line for line in page if not line.startswith("#")]


@given(values=st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_counters_add_up_over_instances_and_workers(values: list[int]) -> None:
    metrics = ModelMetrics()
    for number, value in enumerate(values):
        metrics.take(f"worker {number % 2}", number, counted(value, a="b"))
    assert lines(metrics) == [f'requests{{a="b"}} {sum(values)}']


def test_of_a_gauge_the_value_holds_that_came_last() -> None:
    metrics = ModelMetrics()
    for source, value in ((1, 5.0), (2, 7.0), (1, 6.0)):
        metrics.take("w", source, (gauge("depth", "How deep", ({}, value)),))
    assert lines(metrics) == ["depth 6"]


def test_histograms_add_up_bucket_by_bucket_and_stay_together() -> None:
    message = control_pb2.ModelMetrics(source=1)
    family = message.family.add(name="h", text="t", kind="HISTOGRAM")
    for label in "ab":
        family.metric.add(labels={"x": label}, value=4.5, bound=[1, 2], count=[1, 0, 2])
    shown = wire.model_metrics_from_proto(message)
    metrics = ModelMetrics()
    metrics.take("v", 1, shown)
    metrics.take("w", 1, shown)
    assert lines(metrics) == [
        line
        for label in "ab"
        for line in (
            f'h_bucket{{x="{label}",le="1"}} 2',
            f'h_bucket{{x="{label}",le="2"}} 2',
            f'h_bucket{{x="{label}",le="+Inf"}} 6',
            f'h_sum{{x="{label}"}} 9',
            f'h_count{{x="{label}"}} 6',
        )
    ]


def test_what_an_instance_showed_goes_with_it_and_with_its_worker() -> None:
    metrics = ModelMetrics()
    metrics.take("v", 1, counted(1))
    metrics.take("v", 2, counted(2))
    metrics.take("w", 1, counted(4))
    metrics.take("v", 2, ())
    assert lines(metrics) == ["requests 5"]
    metrics.forget("v")
    assert lines(metrics) == ["requests 4"]
    assert render(metrics.families_of("v")) == ""
    assert len(metrics.families_of("w")) == 1


def test_a_name_that_is_taken_or_of_another_kind_breaks_no_page() -> None:
    metrics = ModelMetrics()
    metrics.take("w", 1, counted(1))
    metrics.take("w", 2, (gauge("requests", "Other", ({}, 9.0)),))
    assert lines(metrics) == ["requests 1"]
    assert metrics.families(["requests"]) == []


def test_a_text_of_several_lines_stays_one_line_of_the_page() -> None:
    sample = Sample(labels={}, value=1)
    family = Family(name="n", text="a\nb\\", kind="gauge", samples=(sample,))
    assert render([family]).splitlines()[0] == r"# HELP n a\nb\\"
