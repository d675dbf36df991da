"""The table, the ratios and the JSON."""

import json

import pytest

from tests.bench import report
from tests.bench.machine import Machine, cpu_model
from tests.bench.perf_analyzer import ClientFigures
from tests.bench.report import Measurement, Ratio
from tests.bench.window import ServerFigures

MACHINE = Machine(
    cpu_model="a processor",
    cores=2,
    kernel="6.1",
    python="3.11.7",
    grpcio="1.81.1",
    onnxruntime="1.32.0",
    commit="abc1234",
    load_average=0.25,
)


def measurement(
    server: str, *, rate: float, router_us: float, worker_us: float, at: int = 32
) -> Measurement:
    return Measurement(
        server=server,
        concurrency=at,
        round_number=1,
        load_average=1.25,
        client=ClientFigures(requests_per_second=rate, p50_us=3300, p99_us=6249),
        serving=ServerFigures(
            window_seconds=4.0,
            requests=40000,
            mean_batch=7.25,
            cpu_us_per_request={"router": router_us, "worker": worker_us},
        ),
    )


OURS = measurement("nereid", rate=10000, router_us=50, worker_us=20)
THEIRS = measurement("grpc.aio", rate=2500, router_us=250, worker_us=100)


def test_a_line_stands_under_its_header() -> None:
    line = report.table_line(OURS)
    assert len(line) == len(report.HEADER)
    assert line.split() == [
        *("nereid", "32", "10000", "3.30", "6.25"),
        *("50.0", "20.0", "-", "7.25", "1.2"),
    ]


def test_the_cpu_of_a_request_is_that_of_router_and_worker() -> None:
    assert OURS.cpu_us == 70


def test_ratios_are_of_throughput_and_of_cpu_time() -> None:
    compared = report.ratios([OURS, THEIRS], server="nereid", baseline="grpc.aio")
    assert compared == [
        Ratio(concurrency=32, throughput=4.0, cpu=5.0, nereid_cpu_us=70)
    ]


def test_a_ratio_takes_the_median_of_the_rounds() -> None:
    rounds = [
        measurement("nereid", rate=rate, router_us=rate, worker_us=0)
        for rate in (100, 10000, 900)
    ]
    (ratio,) = report.ratios([*rounds, THEIRS], server="nereid", baseline="grpc.aio")
    assert (ratio.throughput, ratio.nereid_cpu_us) == (900 / 2500, 900)


def test_what_only_one_server_was_asked_is_not_compared() -> None:
    alone = measurement("nereid", rate=1, router_us=1, worker_us=1, at=8)
    assert report.ratios([alone, THEIRS], server="nereid", baseline="grpc.aio") == []


@pytest.mark.parametrize(
    ("throughput", "cpu_us", "verdict"),
    [(4.0, 75.0, "reached"), (3.99, 75.0, "missed"), (4.0, 75.1, "missed")],
)
def test_the_goal_is_reached_at_its_bounds(
    throughput: float, cpu_us: float, verdict: str
) -> None:
    line = report.ratio_line(
        Ratio(concurrency=32, throughput=throughput, cpu=1, nereid_cpu_us=cpu_us)
    )
    assert line.endswith(verdict)


def test_the_goal_is_for_one_concurrency_only() -> None:
    line = report.ratio_line(Ratio(concurrency=8, throughput=4, cpu=1, nereid_cpu_us=1))
    assert "goal" not in line


def test_the_json_holds_machine_measurements_and_ratios() -> None:
    compared = report.ratios([OURS, THEIRS], server="nereid", baseline="grpc.aio")
    read = json.loads(report.to_json(MACHINE, [OURS, THEIRS], compared))
    assert read["machine"]["commit"] == "abc1234"
    assert [one["server"] for one in read["measurements"]] == ["nereid", "grpc.aio"]
    assert read["measurements"][0]["serving"]["cpu_us_per_request"]["worker"] == 20
    assert read["ratios"][0]["throughput"] == 4.0


def test_the_first_model_name_of_cpuinfo_is_taken() -> None:
    text = "processor : 0\nmodel name\t: Fast: One\n\nmodel name\t: Other\n"
    assert cpu_model(text) == "Fast: One"


def test_a_machine_whose_cpuinfo_has_no_name_still_has_one() -> None:
    assert cpu_model("processor : 0\n")
