"""Measures sequences with implicit state: many at a time, by either strategy.

    .venv/bin/python -m tests.bench.sequences [--concurrency N ...] [--seconds S]

perf_analyzer keeps so many sequences going, of some twenty requests each, one request
of each in flight.
"""

# ruff: noqa: T201  a command prints

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from demo.onnx_graph import Graph
from tests.bench import perf_analyzer, report, run, servers
from tests.bench.errors import BenchError
from tests.bench.perf_analyzer import Load

ROWS: Final = 64
WIDTH: Final = 16
STRATEGIES: Final = {
    "direct": "direct { }",
    "oldest": f"oldest {{ max_candidate_sequences: {ROWS} }}",
}
CONFIG: Final = """
backend: "onnxruntime" max_batch_size: {rows}
input [ {{ name: "X" data_type: TYPE_INT32 dims: [ {width} ] }} ]
output [ {{ name: "SUM" data_type: TYPE_INT32 dims: [ {width} ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
sequence_batching {{
  max_sequence_idle_microseconds: 10000000
  {strategy}
  control_input [ {{
    name: "START"
    control {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }}
  }} ]
  state [ {{
    input_name: "STATE_IN" output_name: "STATE_OUT"
    data_type: TYPE_INT32 dims: [ {width} ]
  }} ]
}}
"""


def accumulator() -> bytes:
    """Return a model that adds up what a sequence sends, and counts from START."""
    graph = Graph("accumulator")
    whole = ("batch", WIDTH)
    x = graph.take("X", "int32", whole)
    start = graph.take("START", "int32", ("batch", 1))
    state = graph.take("STATE_IN", "int32", whole)
    graph.node("Add", graph.node("Add", x, start), state, output="SUM")
    graph.node("Identity", "SUM", output="STATE_OUT")
    graph.give("SUM", "int32", whole)
    graph.give("STATE_OUT", "int32", whole)
    return graph.model()


def write(repository: Path) -> None:
    """Write one model for each strategy."""
    for name, strategy in STRATEGIES.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(accumulator())
        config = CONFIG.format(rows=ROWS, width=WIDTH, strategy=strategy)
        (repository / name / "config.pbtxt").write_text(config, encoding="utf-8")


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[64])
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    try:
        analyzer = perf_analyzer.install(run.VENV)
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            write(Path(folder))
            server = stack.enter_context(servers.nereid(Path(folder), "oldest"))
            print(report.HEADER)
            for name in STRATEGIES:
                for concurrency in options.concurrency:
                    load = Load(
                        address=server.addresses["grpc"],
                        protocol="grpc",
                        model=name,
                        concurrency=concurrency,
                        seconds=options.seconds,
                        asynchronous=False,
                    )
                    measured = run.measure(analyzer, server, load, round_number=1)
                    print(f"{report.table_line(measured)}  {name}", flush=True)
    except BenchError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
