"""Figures of several servers as a table, ratios and JSON. Pure."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.bench.machine import Machine
from tests.bench.perf_analyzer import ClientFigures

OURS: Final = "nereid"
HEADER: Final = (
    f"{'server':<14}{'door':<6}{'conc':>5}{'req/s':>9}{'p50 ms':>9}{'p99 ms':>9}"
    f"{'server us':>11}{'client us':>11}{'load':>6}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerMeasurement:
    """One server under one load.

    Attributes:
        server: Its name; Nereid's begin with "nereid".
        door: How it was asked; figures of different doors are not compared.
        concurrency: Requests in flight.
        load_average: Of the machine's last minute, at the end.
        client: What perf_analyzer saw.
        server_cores: How many cores the server was busy with, all processes.
        client_cores: And the load generator.
    """

    server: str
    door: str
    concurrency: int
    load_average: float
    client: ClientFigures
    server_cores: float
    client_cores: float

    @property
    def server_us(self) -> float:
        """CPU time of the server for each request."""
        return self.server_cores * 1e6 / self.client.requests_per_second

    @property
    def client_us(self) -> float:
        """CPU time of the load generator for each request."""
        return self.client_cores * 1e6 / self.client.requests_per_second


def table_line(one: PeerMeasurement) -> str:
    """Return one line below ``HEADER``."""
    client = one.client
    return (
        f"{one.server:<14}{one.door:<6}{one.concurrency:>5}"
        f"{client.requests_per_second:>9.0f}{client.p50_us / 1000:>9.2f}"
        f"{client.p99_us / 1000:>9.2f}{one.server_us:>11.0f}{one.client_us:>11.0f}"
        f"{one.load_average:>6.1f}"
    )


def ratio_lines(measured: Sequence[PeerMeasurement]) -> list[str]:
    """Compare each of Nereid's rows with every peer of the same door and load."""
    lines = []
    for ours in measured:
        for theirs in measured:
            is_peer = not theirs.server.startswith(OURS)
            where = (theirs.door, theirs.concurrency)
            if (
                not ours.server.startswith(OURS)
                or not is_peer
                or where != (ours.door, ours.concurrency)
            ):
                continue
            speed = ours.client.requests_per_second / theirs.client.requests_per_second
            lines.append(
                f"{ours.server} / {theirs.server}, {ours.door}, concurrency "
                f"{ours.concurrency}: {speed:.2f} x the throughput, "
                f"1/{theirs.server_us / ours.server_us:.2f} of the CPU time, "
                f"{ours.client.p50_us / theirs.client.p50_us:.2f} x the p50"
            )
    return lines


def to_json(
    machine: Machine,
    measured: Sequence[PeerMeasurement],
    missing: Mapping[str, str],
) -> str:
    """Return everything, for machines."""
    return json.dumps(
        {
            "machine": dataclasses.asdict(machine),
            "measurements": [
                {
                    **dataclasses.asdict(one),
                    "server_us": one.server_us,
                    "client_us": one.client_us,
                }
                for one in measured
            ],
            "missing": dict(missing),
        },
        indent=2,
    )
