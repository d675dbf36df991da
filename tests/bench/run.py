"""Measures Nereid and the baseline with perf_analyzer, in the same run."""

# ruff: noqa: T201  a command prints

import argparse
import datetime as dt
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.bench import (
    machine,
    peer_run,
    perf_analyzer,
    profile,
    report,
    servers,
    window,
)
from tests.bench.errors import BenchError
from tests.bench.perf_analyzer import Load, PerfAnalyzer
from tests.bench.report import Measurement
from tests.bench.sampler import Sampler
from tests.bench.servers import RunningServer

ROOT: Final = Path(__file__).resolve().parents[2]
VENV: Final = ROOT / ".venv-bench"
DEMO: Final = ROOT / ".nereid" / "demo"
RESULTS: Final = ROOT / "tests" / "bench" / "results"
START: Final = {"nereid": servers.nereid, "baseline": servers.baseline}
WARM_UP_S: Final = 1.5
# py-spy reads symbols before it samples; the load outlasts it.
SPY_START_S: Final = 2.0


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of ``scripts/bench``."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--model", default="simple", help="default: simple")
    parser.add_argument(
        "--model-repository", type=Path, default=DEMO, help="default: the demo's"
    )
    parser.add_argument(
        "--concurrency", type=int, nargs="+", default=[1, 8, 32, 64], metavar="N"
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="for each measurement (default: 4)"
    )
    parser.add_argument("--rounds", type=int, default=1, help="repeat all (default: 1)")
    parser.add_argument("--protocol", choices=("grpc", "http"), default="grpc")
    parser.add_argument("--client", choices=("async", "sync"), default="async")
    parser.add_argument(
        "--servers", nargs="+", choices=tuple(START), default=list(START)
    )
    parser.add_argument(
        "--serve-flag",
        action="append",
        default=[],
        help="one more flag of nereid serve, as --serve-flag=--allow-http=false",
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="measure other servers too, each in a virtual environment of its own",
    )
    parser.add_argument(
        "--profile", action="store_true", help="print where time goes instead"
    )
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    return parser.parse_args(argv)


def measure(
    analyzer: PerfAnalyzer, server: RunningServer, load: Load, round_number: int
) -> Measurement:
    """Put one load on one server.

    Raises:
        BenchError: perf_analyzer failed, or the load was too short.
    """
    with Sampler(server.addresses["grpc"], load.model, server.roles) as sampler:
        client = analyzer.run(load)
    return Measurement(
        server=server.name,
        concurrency=load.concurrency,
        round_number=round_number,
        load_average=os.getloadavg()[0],
        client=client,
        serving=window.figures(*window.loaded(sampler.samples)),
    )


def measure_all(
    analyzer: PerfAnalyzer,
    running: Sequence[RunningServer],
    options: argparse.Namespace,
) -> list[Measurement]:
    """Measure every server at every concurrency, printing as it goes.

    The servers take turns, so that a slow minute of the machine hits them all.
    """
    measured = []
    print(report.HEADER)
    for round_number in range(1, options.rounds + 1):
        for concurrency in options.concurrency:
            for server in running:
                load = _load(server, options, concurrency, options.seconds)
                if round_number == 1 and concurrency == options.concurrency[0]:
                    warm_up = max(options.concurrency)
                    analyzer.run(_load(server, options, warm_up, WARM_UP_S))
                one = measure(analyzer, server, load, round_number)
                measured.append(one)
                print(report.table_line(one), flush=True)
    return measured


def profile_all(
    analyzer: PerfAnalyzer, server: RunningServer, options: argparse.Namespace
) -> None:
    """Sample router and worker under load; print where their time goes.

    Raises:
        BenchError: perf_analyzer or py-spy failed.
    """
    folder = options.out or RESULTS
    for concurrency in options.concurrency:
        analyzer.run(_load(server, options, concurrency, WARM_UP_S))
        load = _load(server, options, concurrency, options.seconds + SPY_START_S)
        place = folder / f"profile-{server.name}-c{concurrency}"
        with profile.recording(VENV, server.roles, options.seconds, place) as files:
            analyzer.run(load)
        for role, file in files.items():
            stacks = file.read_text(encoding="utf-8")
            title = f"\n{server.name} {role}, concurrency {concurrency}: innermost"
            python = profile.python_leaves(stacks)
            print(profile.table(f"{title} Python functions", python))
            native = profile.native_leaves(stacks)
            print(profile.table(f"{title} functions", native))


def _load(
    server: RunningServer, options: argparse.Namespace, concurrency: int, seconds: float
) -> Load:
    return Load(
        address=server.addresses[options.protocol],
        protocol=options.protocol,
        model=options.model,
        concurrency=concurrency,
        seconds=seconds,
        asynchronous=options.client == "async",
    )


def run(options: argparse.Namespace) -> None:
    """Install, start, measure, report.

    Raises:
        BenchError: one of these failed.
    """
    described = machine.describe(ROOT)
    analyzer = perf_analyzer.install(VENV)
    if options.model_repository == DEMO:
        build = [sys.executable, "-m", "demo.build", "--only", options.model, str(DEMO)]
        subprocess.run(build, cwd=ROOT, check=True)
    print(
        f"{described.cores} cores, {described.cpu_model}, Linux {described.kernel}, "
        f"Python {described.python}, commit {described.commit}, "
        f"load average {described.load_average:.2f}"
    )
    repository = options.model_repository.resolve()
    if options.peers:
        compare_peers(analyzer, repository, options, described)
        return
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                START[name](repository, options.model, options.serve_flag)
            )
            for name in options.servers
        ]
        if options.profile:
            for server in running:
                profile_all(analyzer, server, options)
            return
        reachable = [one for one in running if options.protocol in one.addresses]
        measured = measure_all(analyzer, reachable, options)
    compared = report.ratios(measured, server="nereid", baseline="grpc.aio")
    for ratio in compared:
        print(report.ratio_line(ratio))
    out = options.out or _default_result(described.commit)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(report.to_json(described, measured, compared), encoding="utf-8")
    print(f"written: {os.path.relpath(out)}")


def compare_peers(
    analyzer: PerfAnalyzer,
    repository: Path,
    options: argparse.Namespace,
    described: machine.Machine,
) -> None:
    """Measure Nereid and its peers; print and write what was found.

    Raises:
        BenchError: Nereid itself could not be measured.
    """
    measured, missing = peer_run.measure_all(
        ROOT, analyzer, repository, options.concurrency, options.seconds
    )
    text = peer_run.report(described, measured, missing)
    out = options.out or _default_result(f"{described.commit}-peers")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    print(f"written: {os.path.relpath(out)}")


def _default_result(commit: str) -> Path:
    now = dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S")
    return RESULTS / f"{now}-{commit}.json"


def main() -> int:
    """Run the benchmark; return the exit status."""
    try:
        run(parse_arguments(sys.argv[1:]))
    except BenchError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
