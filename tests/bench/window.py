"""What the server did while the load was on, from samples of its counters. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.bench.errors import BenchError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Counters at one moment, all since the processes started.

    Attributes:
        at_ns: Monotonic time.
        requests: Answered successfully.
        rows: In those requests.
        executions: Batches that the model ran.
        cpu_ns: CPU time by role.
    """

    at_ns: int
    requests: int
    rows: int
    executions: int
    cpu_ns: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFigures:
    """What the server did in the window.

    Attributes:
        window_seconds: Length of the window.
        requests: Answered in it.
        mean_batch: Rows in one execution.
        cpu_us_per_request: By role.
    """

    window_seconds: float
    requests: int
    mean_batch: float
    cpu_us_per_request: Mapping[str, float]


def loaded(samples: Sequence[Sample]) -> tuple[Sample, Sample]:
    """Return the first and the last sample between which the load was full.

    The load begins and ends somewhere between two samples: those two intervals do
    not count. A pause in the middle does: it is the server's.

    Raises:
        BenchError: fewer than three intervals saw requests.
    """
    busy = [
        index
        for index, (earlier, later) in enumerate(pairwise(samples))
        if later.requests > earlier.requests
    ]
    if not busy or busy[-1] - busy[0] < 2:
        raise BenchError("the load was too short to be measured: raise --seconds")
    return samples[busy[0] + 1], samples[busy[-1]]


def figures(first: Sample, last: Sample) -> ServerFigures:
    """Return what happened between two samples.

    Args:
        first: The earlier one.
        last: At least one request later.
    """
    requests = last.requests - first.requests
    executions = last.executions - first.executions
    return ServerFigures(
        window_seconds=(last.at_ns - first.at_ns) / 1e9,
        requests=requests,
        mean_batch=(last.rows - first.rows) / executions if executions else 0.0,
        cpu_us_per_request={
            role: (last.cpu_ns[role] - first.cpu_ns[role]) / requests / 1000
            for role in first.cpu_ns
        },
    )
