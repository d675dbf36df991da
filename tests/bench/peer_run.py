"""Measures Nereid and its peers, one after the other, with perf_analyzer."""

# ruff: noqa: T201  a command prints

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench import peer_report, peers, servers
from tests.bench.cpu_sampler import CpuSampler, shares
from tests.bench.errors import BenchError
from tests.bench.machine import Machine
from tests.bench.peer_report import PeerMeasurement
from tests.bench.perf_analyzer import Load, PerfAnalyzer

GRPC: Final = "grpc"
JSON: Final = "json"
WARM_UP_S: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Door:
    """Where a server is asked."""

    name: str
    door: str
    address: str
    pid: int


def measure_all(
    root: Path,
    analyzer: PerfAnalyzer,
    repository: Path,
    concurrencies: Sequence[int],
    seconds: float,
) -> tuple[list[PeerMeasurement], dict[str, str]]:
    """Start, measure and stop each server in turn, printing as it goes.

    Args:
        root: Where the peers' virtual environments lie.
        analyzer: The load generator.
        repository: Has `simple` as an ONNX model.
        concurrencies: Requests in flight.
        seconds: For each measurement.

    Returns:
        The figures, and why which peers have none.
    """
    measured: list[PeerMeasurement] = []
    missing: dict[str, str] = {}
    print(peer_report.HEADER)
    with tempfile.TemporaryDirectory(prefix="nereid-peers-") as directory:
        folder = Path(directory)
        python = peers.write_python_model(folder / "python")
        for name, models, both in (
            ("nereid onnx", repository, False),
            ("nereid python", python, True),
        ):
            with _nereid(name, models, both=both) as doors:
                measured += _measure(analyzer, doors, concurrencies, seconds)
        for peer in peers.PEERS:
            place = folder / peer.name
            place.mkdir()
            venv = root / f".venv-peer-{peer.name}"
            try:
                peers.install(peer, venv)
                with peers.running(peer, venv, place) as running:
                    door = _Door(
                        name=peer.name,
                        door=peer.door,
                        address=running.address,
                        pid=running.pid,
                    )
                    measured += _measure(analyzer, [door], concurrencies, seconds)
            except BenchError as error:
                missing[peer.name] = str(error)
                reason = str(error).strip().splitlines()[-1]
                print(f"{peer.name:<14}has no figures here: {reason}")
    return measured, missing


def report(
    machine: Machine, measured: list[PeerMeasurement], missing: dict[str, str]
) -> str:
    """Print what the figures say; return them as JSON."""
    for line in peer_report.ratio_lines(measured):
        print(line)
    for peer in peers.PEERS:
        if peer.note:
            print(f"{peer.name}: {peer.note}")
    return peer_report.to_json(machine, measured, missing)


@contextmanager
def _nereid(name: str, repository: Path, *, both: bool) -> Iterator[list[_Door]]:
    with servers.nereid(repository, peers.MODEL) as running:
        addresses = [(GRPC, running.addresses["grpc"])]
        if both:
            addresses.append((JSON, running.addresses["http"]))
        yield [
            _Door(name=name, door=door, address=address, pid=running.pid)
            for door, address in addresses
        ]


def _measure(
    analyzer: PerfAnalyzer,
    doors: Sequence[_Door],
    concurrencies: Sequence[int],
    seconds: float,
) -> list[PeerMeasurement]:
    measured = []
    for door in doors:
        analyzer.run(_load(door, max(concurrencies), WARM_UP_S))
        for concurrency in concurrencies:
            with CpuSampler(door.pid) as sampler:
                client = analyzer.run(_load(door, concurrency, seconds))
            busy = shares(sampler.samples)
            one = PeerMeasurement(
                server=door.name,
                door=door.door,
                concurrency=concurrency,
                load_average=os.getloadavg()[0],
                client=client,
                server_cores=busy.server,
                client_cores=busy.client,
            )
            measured.append(one)
            print(peer_report.table_line(one), flush=True)
    return measured


def _load(door: _Door, concurrency: int, seconds: float) -> Load:
    return Load(
        address=door.address,
        protocol="grpc" if door.door == GRPC else "http",
        model=peers.MODEL,
        concurrency=concurrency,
        seconds=seconds,
        asynchronous=True,
        is_json=door.door == JSON,
    )
