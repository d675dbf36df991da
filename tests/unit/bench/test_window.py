"""Which samples count, and what follows from them."""

import pytest

from tests.bench import window
from tests.bench.errors import BenchError
from tests.bench.window import Sample


def sample(at_s: float, requests: int, **changes: int) -> Sample:
    return Sample(
        at_ns=round(at_s * 1e9),
        requests=requests,
        rows=changes.get("rows", requests),
        executions=changes.get("executions", requests),
        cpu_ns={"router": changes.get("router_ns", 0)},
    )


def test_the_intervals_in_which_the_load_begins_and_ends_do_not_count() -> None:
    samples = [sample(at, count) for at, count in enumerate([5, 5, 9, 20, 30, 33, 33])]
    assert window.loaded(samples) == (samples[2], samples[4])


def test_a_pause_in_the_middle_counts() -> None:
    samples = [sample(at, count) for at, count in enumerate([0, 4, 9, 9, 14, 16])]
    assert window.loaded(samples) == (samples[1], samples[4])


@pytest.mark.parametrize("requests", [[0, 0, 0], [0, 5, 9, 9], [0, 5], [3]])
def test_a_load_without_an_inner_interval_is_refused(requests: list[int]) -> None:
    samples = [sample(at, count) for at, count in enumerate(requests)]
    with pytest.raises(BenchError, match="too short"):
        window.loaded(samples)


def test_figures_are_per_request_of_the_window() -> None:
    figures = window.figures(
        sample(10.0, 1000, executions=300, router_ns=7_000_000),
        sample(12.5, 3000, executions=800, router_ns=107_000_000),
    )
    assert figures.window_seconds == 2.5
    assert figures.requests == 2000
    assert figures.mean_batch == 4.0
    assert figures.cpu_us_per_request == {"router": 50.0}


def test_the_mean_batch_counts_rows_not_requests() -> None:
    figures = window.figures(
        sample(0, 0), sample(1, 10, rows=60, executions=10, router_ns=1)
    )
    assert figures.mean_batch == 6.0


def test_without_an_execution_the_mean_batch_is_nought() -> None:
    assert window.figures(sample(0, 0), sample(1, 9, executions=0)).mean_batch == 0.0
