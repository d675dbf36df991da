"""Control's part of the Prometheus page."""

from services.control.load_durations import LoadDurations
from services.control.metrics import Measured, render
from services.control.route_table import VersionRoute
from services.core.lifecycle import ModelState


class HandClock:
    """Time as the test sets it."""

    def __init__(self) -> None:
        self.at_ns = 0

    def now_ns(self) -> int:
        return self.at_ns


def test_the_page_counts_states_workers_routers_and_loads() -> None:
    page = render(
        Measured(
            routes=(
                VersionRoute(model="m", version=1, state=ModelState.READY),
                VersionRoute(model="m", version=2, state=ModelState.READY),
                VersionRoute(model="n", version=1, state=ModelState.UNAVAILABLE),
            ),
            worker_count=2,
            router_count=1,
            load_durations_s={("m", 1): 0.25},
        )
    )
    lines = page.splitlines()
    assert 'nereid_models{state="READY"} 2' in lines
    assert 'nereid_models{state="UNAVAILABLE"} 1' in lines
    assert 'nereid_models{state="LOADING"} 0' in lines
    assert "nereid_workers 2" in lines
    assert "nereid_routers 1" in lines
    assert 'nv_model_load_duration_secs{model="m",version="1"} 0.25' in lines
    assert "# TYPE nv_model_load_duration_secs gauge" in lines
    assert page.endswith("\n")


def test_a_label_cannot_break_its_line() -> None:
    page = render(
        Measured(
            routes=(),
            worker_count=0,
            router_count=0,
            load_durations_s={('a"\n\\', 1): 1.0},
        )
    )
    assert r'{model="a\"\n\\",version="1"} 1.0' in page


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
