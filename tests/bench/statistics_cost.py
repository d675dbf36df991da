"""What statistics cost: a router's CPU time for each request, with and without.

    .venv/bin/python -m tests.bench.statistics_cost [--rounds N] [--concurrency N ...]

First counting alone, in this process (tests/bench/counting_cost.py). Then two stacks
take turns under the same load. Requests are those that perf_analyzer says it had
answered, for without statistics the server cannot say.
"""

# ruff: noqa: T201  a command prints

import argparse
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import Final

from tests.bench import perf_analyzer, process_cpu, servers
from tests.bench.counting_cost import counting_us, unsampled_us
from tests.bench.errors import BenchError
from tests.bench.perf_analyzer import Load, PerfAnalyzer
from tests.bench.run import DEMO, ROOT, VENV
from tests.bench.servers import RunningServer

# Rows of a batch at concurrency 1, 8 and 32.
BATCHES: Final = (1, 4, 8, 16)
MODEL: Final = "simple"
SECONDS: Final = 3.0
# When the load is full, and for how long it then surely is.
FULL_AFTER_S: Final = 1.0
FULL_FOR_S: Final = 1.5


def router_us(analyzer: PerfAnalyzer, server: RunningServer, concurrency: int) -> float:
    """Return the router's CPU time for each request, in microseconds.

    Raises:
        BenchError: perf_analyzer failed.
    """
    load = Load(
        address=server.addresses["grpc"],
        protocol="grpc",
        model=MODEL,
        concurrency=concurrency,
        seconds=SECONDS,
        asynchronous=True,
    )
    shares: list[float] = []

    def watch() -> None:
        time.sleep(FULL_AFTER_S)
        began_ns, before_ns = time.monotonic_ns(), _cpu_ns(server)
        time.sleep(FULL_FOR_S)
        took_ns = time.monotonic_ns() - began_ns
        shares.append((_cpu_ns(server) - before_ns) / took_ns)

    watching = threading.Thread(target=watch)
    watching.start()
    client = analyzer.run(load)
    watching.join()
    return shares[0] / client.requests_per_second * 1e6


def _cpu_ns(server: RunningServer) -> int:
    return process_cpu.cpu_ns({"router": server.roles["router"]})["router"]


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    options = parser.parse_args()
    for batch in BATCHES:
        print(f"counting, {batch} in a batch: {counting_us(batch):.2f} us a request")
    print(f"passing a sampler by: {unsampled_us():.2f} us a request")
    build = [sys.executable, "-m", "demo.build", "--only", MODEL, str(DEMO)]
    subprocess.run(build, cwd=ROOT, check=True)
    try:
        analyzer = perf_analyzer.install(VENV)
        with ExitStack() as stack:
            kinds = {
                flag: stack.enter_context(
                    servers.nereid(DEMO, MODEL, [f"--allow-statistics={flag}"])
                )
                for flag in ("true", "false")
            }
            for concurrency in options.concurrency:
                found: dict[str, list[float]] = {flag: [] for flag in kinds}
                for round_number in range(options.rounds):
                    # Who goes first goes second next time.
                    turns = list(kinds.items())[:: -1 if round_number % 2 else 1]
                    for flag, server in turns:
                        found[flag].append(router_us(analyzer, server, concurrency))
                on, off = (statistics.median(found[flag]) for flag in kinds)
                pairs = zip(found["true"], found["false"], strict=True)
                differences = sorted(one - other for one, other in pairs)
                print(
                    f"concurrency {concurrency}: router {on:.1f} us with statistics,"
                    f" {off:.1f} without; of {options.rounds} rounds the differences"
                    f" are {differences[0]:+.1f} to {differences[-1]:+.1f},"
                    f" median {statistics.median(differences):+.1f}",
                    flush=True,
                )
    except BenchError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
