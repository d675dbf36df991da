"""perf_analyzer's command line and its report."""

from pathlib import Path

import pytest

from tests.bench.errors import BenchError
from tests.bench.perf_analyzer import ClientFigures, Load, parse_report

HEADER = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,"
    "Server Queue,Server Compute Input,Server Compute Infer,Server Compute Output,"
    "Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
)
LINE = "32,9400.5,11,2900,300,10,60,12,4,3300,4100,4500,6200"


def load(*, seconds: float = 6.0, asynchronous: bool = True) -> Load:
    return Load(
        address="127.0.0.1:8001",
        protocol="grpc",
        model="simple",
        concurrency=32,
        seconds=seconds,
        asynchronous=asynchronous,
    )


def test_a_report_gives_throughput_and_latencies_in_microseconds() -> None:
    assert parse_report(f"{HEADER}\n{LINE}\n") == ClientFigures(
        requests_per_second=9400.5, p50_us=3300.0, p99_us=6200.0
    )


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (f"{HEADER}\n", "0 measurements"),
        (f"{HEADER}\n{LINE}\n{LINE}\n", "2 measurements"),
        (f"{HEADER.replace('p99', 'p98')}\n{LINE}\n", "no 'p99 latency'"),
        (f"{HEADER}\n32,many\n", "no 'Inferences/Second'"),
        (f"{HEADER}\n32,1.0\n", "no 'p50 latency'"),
    ],
)
def test_a_report_without_its_one_measurement_is_refused(
    report: str, message: str
) -> None:
    with pytest.raises(BenchError, match=message):
        parse_report(report)


def test_the_seconds_are_spread_over_three_windows() -> None:
    arguments = load(seconds=6.0).arguments(Path("r.csv"))
    assert arguments[arguments.index("-p") + 1] == "2000"


def test_no_window_is_shorter_than_half_a_second() -> None:
    assert load(seconds=0.3).window_ms == 500


@pytest.mark.parametrize(
    ("asynchronous", "flag"), [(True, "--async"), (False, "--sync")]
)
def test_the_client_s_mode_is_always_said(*, asynchronous: bool, flag: str) -> None:
    assert load(asynchronous=asynchronous).arguments(Path("r.csv"))[-1] == flag
