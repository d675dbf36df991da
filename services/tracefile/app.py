"""The command ``nereid trace``: what is in trace files."""

import argparse
import sys
from pathlib import Path

from services.tracefile import perfetto
from services.tracefile.records import TracedRequest, read
from services.tracefile.summary import summary


def main(argv: list[str]) -> int:
    """Print a summary of trace files, or write them for Perfetto.

    Returns:
        0; 1 if a file cannot be read or written.
    """
    options = _parser().parse_args(argv)
    requests: list[TracedRequest] = []
    for path in options.files:
        try:
            requests += read(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return _complain(f"{path}: {error}")
    if not options.perfetto:
        sys.stdout.write(summary(requests))
        return 0
    try:
        Path(options.perfetto).write_text(perfetto.to_json(requests), encoding="utf-8")
    except OSError as error:
        return _complain(str(error))
    return 0


def _complain(text: str) -> int:
    sys.stderr.write(f"nereid trace: {text}\n")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nereid trace",
        description="Summarizes trace files: p50 and p99 of each phase, by model.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON, as traced")
    parser.add_argument(
        "--perfetto",
        default="",
        metavar="OUT.json",
        help="write this file for ui.perfetto.dev, in place of the summary",
    )
    return parser
