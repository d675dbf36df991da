"""Figures of other servers: what is counted, and what is compared."""

import json

import pytest

from tests.bench import peer_report, peers
from tests.bench.cpu_sampler import CpuSample, shares
from tests.bench.errors import BenchError
from tests.bench.machine import Machine
from tests.bench.peer_report import PeerMeasurement
from tests.bench.perf_analyzer import ClientFigures

SECOND = 1_000_000_000
MACHINE = Machine(
    cpu_model="c",
    cores=2,
    kernel="k",
    python="3",
    grpcio="1",
    onnxruntime="1",
    commit="abc",
    load_average=0.0,
)


def measured(
    server: str, door: str, concurrency: int, rate: float, cores: float
) -> PeerMeasurement:
    client = ClientFigures(requests_per_second=rate, p50_us=1e6 / rate, p99_us=1e6)
    return PeerMeasurement(
        server=server,
        door=door,
        concurrency=concurrency,
        load_average=2.0,
        client=client,
        server_cores=cores,
        client_cores=0.5,
    )


def samples(client: list[int], server: list[int]) -> list[CpuSample]:
    return [
        CpuSample(at_ns=i * SECOND, client_ns=c * SECOND, server_ns=s * SECOND)
        for i, (c, s) in enumerate(zip(client, server, strict=True))
    ]


def test_shares_are_those_of_the_middle_of_the_load() -> None:
    client = [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8]
    server = [0, 0, 9, 11, 13, 15, 17, 19, 21, 23, 29, 29]
    found = shares(samples(client, server))
    assert (found.client, found.server) == (1.0, 2.0)


def test_a_load_that_was_hardly_there_has_no_shares() -> None:
    with pytest.raises(BenchError, match="too short"):
        shares(samples([0, 1, 2, 2, 2, 2], [0, 1, 2, 3, 4, 5]))


def test_cpu_time_is_for_each_request() -> None:
    one = measured("nereid onnx", "grpc", 8, rate=10_000, cores=1.5)
    assert (one.server_us, one.client_us) == (150.0, 50.0)
    assert peer_report.table_line(one).split() == [
        *("nereid", "onnx", "grpc", "8", "10000", "0.10", "1000.00"),
        *("150", "50", "2.0"),
    ]


def test_only_rows_of_one_door_and_load_are_compared() -> None:
    lines = peer_report.ratio_lines(
        [
            measured("nereid onnx", "grpc", 8, rate=8_000, cores=1.0),
            measured("nereid python", "json", 8, rate=2_000, cores=1.0),
            measured("triton", "grpc", 8, rate=4_000, cores=1.0),
            measured("triton", "grpc", 1, rate=1_000, cores=1.0),
            measured("litserve", "json", 8, rate=1_000, cores=1.0),
        ]
    )
    assert [line.partition(",")[0] for line in lines] == [
        "nereid onnx / triton",
        "nereid python / litserve",
    ]
    assert "2.00 x the throughput, 1/2.00 of the CPU time, 0.50 x the p50" in lines[0]


def test_who_has_no_figures_is_in_the_file_with_the_reason() -> None:
    text = peer_report.to_json(MACHINE, [], {"kserve": "no such package"})
    assert json.loads(text)["missing"] == {"kserve": "no such package"}


def test_no_peer_is_among_our_own_requirements() -> None:
    folder = peers.PROGRAMS.parents[2]
    ours = (folder / "requirements" / "constraints.txt").read_text()
    theirs = {p.packages[0].partition("==")[0] for p in peers.PEERS}
    assert theirs == {"nvidia-pytriton", "mlserver", "kserve", "litserve"}
    assert not [name for name in theirs if f"{name}==" in ours]
