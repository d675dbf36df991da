"""Metrics of models' own: many instances, many lives, one page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import control_pb2
from services.control import worker_wire
from services.control.model_metrics import Families, ModelMetrics
from services.control.model_metrics_text import (
    add_stored,
    ended_name,
    source_name,
    to_text,
)
from services.control.model_registry import Worker
from services.control.prometheus import Family, Sample, counter, gauge, render

M = ("m", 1)
FIRST = Worker(worker_id="my worker", process_id=1, started_ms=100)
SECOND = Worker(worker_id="my worker", process_id=1, started_ms=200)


def counted(value: float, **labels: str) -> Families:
    return (counter("requests", "How many", (labels, value)),)


def histogram(counts: list[int], bounds: list[float]) -> Families:
    message = control_pb2.ModelMetrics(source=1)
    family = message.family.add(name="h", text="t", kind="HISTOGRAM")
    for label in "ab":
        family.metric.add(labels={"x": label}, value=4.5, bound=bounds, count=counts)
    return worker_wire.model_metrics_from_proto(message)


def lines(metrics: ModelMetrics) -> list[str]:
    page = render(metrics.families()).splitlines()
    return [line for line in page if not line.startswith("#")]


def stored_of(metrics: ModelMetrics) -> dict[str, str]:
    sources = {
        source_name(source): to_text(shown.version, shown.families)
        for source, shown in metrics.sources.items()
    }
    ended = {ended_name(v): to_text(v, each) for v, each in metrics.ended.items()}
    return sources | ended


@given(values=st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_counters_add_up_over_instances_and_workers(values: list[int]) -> None:
    metrics = ModelMetrics()
    for number, value in enumerate(values):
        metrics.take((f"worker {number % 2}", number), M, counted(value, a="b"))
    assert lines(metrics) == [f'requests{{a="b"}} {sum(values)}']


def test_of_a_gauge_the_value_holds_that_came_last() -> None:
    metrics = ModelMetrics()
    for source, value in ((1, 5.0), (2, 7.0), (1, 6.0)):
        metrics.take(("w", source), M, (gauge("depth", "How deep", ({}, value)),))
    assert lines(metrics) == ["depth 6"]


def test_histograms_add_up_bucket_by_bucket_and_stay_together() -> None:
    metrics = ModelMetrics()
    metrics.take(("v", 1), M, histogram([1, 0, 2], [1, 2]))
    metrics.take(("w", 1), M, histogram([1, 0, 2], [1, 2]))
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


def test_histograms_of_other_buckets_are_not_mixed() -> None:
    metrics = ModelMetrics()
    metrics.take(("v", 1), M, histogram([1, 0, 2], [1, 2]))
    metrics.take(("v", 1), M, ())
    metrics.take(("v", 2), M, histogram([5, 1], [3]))
    assert [line for line in lines(metrics) if 'x="a"' in line] == [
        'h_bucket{x="a",le="3"} 5',
        'h_bucket{x="a",le="+Inf"} 6',
        'h_sum{x="a"} 4.5',
        'h_count{x="a"} 6',
    ]


@pytest.mark.parametrize("end", ["source", "process", "successor"])
def test_what_an_instance_counted_outlives_it(end: str) -> None:
    metrics = ModelMetrics()
    metrics.take((FIRST.process, 1), M, counted(3))
    metrics.take(("other 7 1", 1), M, counted(4))
    match end:
        case "source":
            metrics.take((FIRST.process, 1), M, ())
        case "process":
            metrics.end(FIRST.process)
        case _:
            metrics.end_before(SECOND)
    assert (FIRST.process, 1) not in metrics.sources
    assert lines(metrics) == ["requests 7"]
    metrics.take((SECOND.process, 1), M, counted(2))
    assert lines(metrics) == ["requests 9"]


def test_a_family_is_shown_while_its_version_has_it() -> None:
    metrics = ModelMetrics()
    metrics.take(("v", 1), M, counted(3))
    metrics.take(("v", 1), M, ())
    assert lines(metrics) == []
    metrics.take(("v", 2), ("m", 2), counted(1))
    assert lines(metrics) == ["requests 1"]
    metrics.take(("v", 3), M, counted(0))
    assert lines(metrics) == ["requests 4"]


def test_a_series_that_a_model_begins_anew_counts_on() -> None:
    metrics = ModelMetrics()
    metrics.take(("v", 1), M, counted(5, a="1") + histogram([9, 0, 0], [1, 2]))
    metrics.take(("v", 1), M, counted(2, a="2") + histogram([1, 9, 9], [1, 2]))
    page = lines(metrics)
    assert page[:2] == ['requests{a="2"} 2', 'requests{a="1"} 5']
    assert 'h_count{x="a"} 28' in page


def test_a_lost_worker_that_comes_back_is_not_counted_twice() -> None:
    metrics = ModelMetrics()
    depth = gauge("depth", "How deep", ({}, 2.0))
    metrics.take((FIRST.process, 1), M, (*counted(3), depth))
    metrics.take(("w 1 1", 1), M, counted(1))
    metrics.lose(FIRST.process)
    assert lines(metrics) == ["requests 4"]
    metrics.end_before(FIRST)
    metrics.take((FIRST.process, 1), M, (*counted(5), depth))
    assert lines(metrics) == ["requests 6", "depth 2"]


def test_lost_workers_without_end_cost_no_memory_and_lose_no_count() -> None:
    metrics = ModelMetrics()
    for number in range(1000):
        metrics.take((f"w{number} 1 1", 1), M, counted(1))
        metrics.lose(f"w{number} 1 1")
    metrics.take(("v 1 1", 1), M, counted(1))
    assert len(metrics.sources) < 300
    assert lines(metrics) == ["requests 1001"]


def test_a_reset_begins_at_zero_though_instances_count_on() -> None:
    metrics = ModelMetrics()
    metrics.take(("v", 1), M, counted(3))
    metrics.take(("v", 1), M, ())
    metrics.take(("v", 2), M, counted(4))
    metrics.take(("v", 3), ("other", 1), counted(5, of="other"))
    metrics.reset("m")
    assert lines(metrics) == ["requests 0", 'requests{of="other"} 5']
    metrics.take(("v", 2), M, counted(6))
    assert "requests 2" in lines(metrics)


def test_a_successor_goes_on_from_what_was_stored() -> None:
    before, after = ModelMetrics(), ModelMetrics()
    before.take((FIRST.process, 1), M, counted(3))
    before.take((FIRST.process, 1), M, ())
    before.take((FIRST.process, 2), M, counted(4))
    before.take(("w 1 1", 1), M, counted(1))
    # One worker has shown itself, and something has ended, before the store was read.
    after.take(("w 1 1", 1), M, counted(2))
    after.take(("x 1 1", 1), M, counted(10))
    after.take(("x 1 1", 1), M, ())
    add_stored(after, stored_of(before))
    assert lines(after) == ["requests 19"]
    after.take((FIRST.process, 2), M, counted(4))
    assert lines(after) == ["requests 19"]


def test_of_a_text_of_another_form_nothing_is_taken() -> None:
    metrics = ModelMetrics()
    good = to_text(M, counted(1))
    ended = ended_name(M)
    for name, text in (("x", "[]"), (ended, "{}"), (ended, '["m", 1, [{}]]')):
        with pytest.raises(ValueError, match=r".+"):
            add_stored(metrics, {source_name(("p", 1)): good, name: text})
    assert (metrics.sources, metrics.ended) == ({}, {})


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["count", "end", "lose", "return", "restart control"]),
            st.integers(0, 2),
        ),
        max_size=20,
    )
)
def test_whatever_ends_and_returns_nothing_is_lost_or_counted_twice(
    steps: list[tuple[str, int]],
) -> None:
    metrics, values, lives = ModelMetrics(), dict.fromkeys(range(3), 0), [0, 0, 0]
    expected = 0
    for step, number in steps:
        process = f"w{number} 1 1"
        if step == "count":
            values[number] += 1
            expected += 1
        if step in {"count", "return"}:
            shown = counted(values[number])
            metrics.take((process, lives[number]), M, shown)
        elif step == "end":
            metrics.take((process, lives[number]), M, ())
            lives[number] += 1
            values[number] = 0
        elif step == "lose":
            metrics.lose(process)
        else:
            stored = stored_of(metrics)
            metrics = ModelMetrics()
            add_stored(metrics, stored)
    metrics.take(("last 1 1", 1), M, counted(0))
    assert lines(metrics) == [f"requests {expected}"]


def test_a_name_that_is_taken_or_of_another_kind_breaks_no_page() -> None:
    metrics = ModelMetrics()
    metrics.take(("w", 1), M, counted(1))
    metrics.take(("w", 2), M, (gauge("requests", "Other", ({}, 9.0)),))
    assert lines(metrics) == ["requests 1"]
    assert metrics.families(["requests"]) == []
    assert len(metrics.families_of("w")) == 1
    assert metrics.families_of("v") == []


def test_a_text_of_several_lines_stays_one_line_of_the_page() -> None:
    sample = Sample(labels={}, value=1)
    family = Family(name="n", text="a\nb\\", kind="gauge", samples=(sample,))
    assert render([family]).splitlines()[0] == r"# HELP n a\nb\\"
