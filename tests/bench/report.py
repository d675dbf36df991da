"""Figures as a table and as JSON. Pure."""

import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.bench.machine import Machine
from tests.bench.perf_analyzer import ClientFigures
from tests.bench.window import ServerFigures

# What the design asks of `simple` over gRPC at this concurrency.
GOAL_CONCURRENCY: Final = 32
GOAL_CPU_US: Final = 75
GOAL_RATIO: Final = 4

HEADER: Final = (
    f"{'server':<9}{'conc':>5}{'req/s':>9}{'p50 ms':>9}{'p99 ms':>9}"
    f"{'router us':>11}{'worker us':>11}{'envoy us':>10}{'batch':>7}{'load':>6}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One server under one load.

    Attributes:
        server: Its name.
        concurrency: Requests in flight.
        round_number: From 1; each round measures everything once.
        load_average: Of the machine's last minute, at the end.
        client: What perf_analyzer saw.
        serving: What the counters say.
    """

    server: str
    concurrency: int
    round_number: int
    load_average: float
    client: ClientFigures
    serving: ServerFigures

    @property
    def cpu_us(self) -> float:
        """Of router and worker, for each request."""
        by_role = self.serving.cpu_us_per_request
        return by_role.get("router", 0.0) + by_role.get("worker", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Nereid against the baseline at one concurrency; medians over the rounds.

    Attributes:
        concurrency: Requests in flight.
        throughput: Nereid's over the baseline's; more is better.
        cpu: The baseline's CPU time over Nereid's; more is better.
        nereid_cpu_us: Nereid's router and worker, for each request.
    """

    concurrency: int
    throughput: float
    cpu: float
    nereid_cpu_us: float


def table_line(measured: Measurement) -> str:
    """Return one line below ``HEADER``."""
    client, serving = measured.client, measured.serving
    roles = "".join(
        f"{serving.cpu_us_per_request[role]:>{width}.1f}"
        if role in serving.cpu_us_per_request
        else f"{'-':>{width}}"
        for role, width in (("router", 11), ("worker", 11), ("envoy", 10))
    )
    return (
        f"{measured.server:<9}{measured.concurrency:>5}"
        f"{client.requests_per_second:>9.0f}{client.p50_us / 1000:>9.2f}"
        f"{client.p99_us / 1000:>9.2f}{roles}"
        f"{serving.mean_batch:>7.2f}{measured.load_average:>6.1f}"
    )


def ratios(
    measured: Sequence[Measurement], *, server: str, baseline: str
) -> list[Ratio]:
    """Compare two servers wherever both were measured."""
    found = []
    for concurrency in sorted({one.concurrency for one in measured}):
        here = [one for one in measured if one.concurrency == concurrency]
        ours = [one for one in here if one.server == server]
        theirs = [one for one in here if one.server == baseline]
        if ours and theirs:
            cpu_us = statistics.median(one.cpu_us for one in ours)
            found.append(
                Ratio(
                    concurrency=concurrency,
                    throughput=_throughput(ours) / _throughput(theirs),
                    cpu=statistics.median(one.cpu_us for one in theirs) / cpu_us,
                    nereid_cpu_us=cpu_us,
                )
            )
    return found


def _throughput(measured: Sequence[Measurement]) -> float:
    return statistics.median(one.client.requests_per_second for one in measured)


def ratio_line(ratio: Ratio) -> str:
    """Return one ratio as a sentence, with the goal where there is one."""
    line = (
        f"concurrency {ratio.concurrency}: {ratio.throughput:.2f} x the baseline's "
        f"throughput, 1/{ratio.cpu:.2f} of its CPU time "
        f"({ratio.nereid_cpu_us:.0f} us a request)"
    )
    if ratio.concurrency != GOAL_CONCURRENCY:
        return line
    is_reached = ratio.throughput >= GOAL_RATIO and ratio.nereid_cpu_us <= GOAL_CPU_US
    verdict = "reached" if is_reached else "missed"
    return f"{line}; goal {GOAL_RATIO} x and {GOAL_CPU_US} us: {verdict}"


def to_json(
    machine: Machine, measured: Sequence[Measurement], compared: Sequence[Ratio]
) -> str:
    """Return everything, for machines."""
    return json.dumps(
        {
            "machine": dataclasses.asdict(machine),
            "measurements": [dataclasses.asdict(one) for one in measured],
            "ratios": [dataclasses.asdict(one) for one in compared],
        },
        indent=2,
    )
