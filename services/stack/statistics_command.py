"""``nereid stats``: what was counted, as a table; and ``--reset``."""

import argparse
import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import grpc

from protos import control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc
from services.stack.directories import PREFIX

CONTROL_VARIABLE: Final = "NEREID_CONTROL"
_SOCKET: Final = "control.sock"
_TIMEOUT_S: Final = 10.0
_HEADINGS: Final = (
    *("MODEL", "VERSION", "SUCCESS", "FAIL", "INFERENCES", "EXECUTIONS", "ROWS/BATCH"),
    *("QUEUE us", "INPUT us", "INFER us", "OUTPUT us"),
)


def main(argv: Sequence[str]) -> int:
    """Show or reset statistics.

    Returns:
        0; 1 if control is not found or refuses.
    """
    options = _parser().parse_args(argv)
    try:
        target = options.control or control_target(Path(tempfile.gettempdir()))
        with grpc.insecure_channel(target) as channel:
            if options.reset:
                sys.stdout.write(_reset(channel, options.reset))
            else:
                sys.stdout.write(table(_statistics(channel, options.model)))
    except LookupError as error:
        sys.stderr.write(f"nereid stats: {error.args[0]}\n")
        return 1
    except grpc.RpcError as error:
        sys.stderr.write(f"nereid stats: {error.details()}\n")
        return 1
    return 0


def control_target(parent: Path) -> str:
    """Return the address of the control that this user's ``nereid serve`` runs.

    Args:
        parent: The folder of its run folders.

    Raises:
        LookupError: there is none, or more than one; the message says what to do.
    """
    if target := os.environ.get(CONTROL_VARIABLE):
        return target
    found = [path for path in parent.glob(f"{PREFIX}*/{_SOCKET}") if _is_ours(path)]
    if len(found) != 1:
        how_many = "no" if not found else "more than one"
        raise LookupError(
            f"{how_many} running nereid serve of yours was found; say where control "
            f"listens: --control TARGET, or ${CONTROL_VARIABLE}"
        )
    return f"unix:{found[0]}"


def table(models: Iterable[inference_pb2.ModelStatistics]) -> str:
    """Return a line for each version, under headings; durations are averages."""
    rows = [_HEADINGS, *map(_row, models)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _row(model: inference_pb2.ModelStatistics) -> tuple[str, ...]:
    stats = model.inference_stats
    executions = model.execution_count
    rows = sum(
        batch.batch_size * batch.compute_infer.count for batch in model.batch_stats
    )
    return (
        model.name,
        model.version,
        str(stats.success.count),
        str(stats.fail.count),
        str(model.inference_count),
        str(executions),
        f"{rows / executions:.2f}" if executions else "-",
        _average_us(stats.queue),
        _average_us(stats.compute_input),
        _average_us(stats.compute_infer),
        _average_us(stats.compute_output),
    )


def _average_us(duration: inference_pb2.StatisticDuration) -> str:
    if not duration.count:
        return "-"
    return f"{duration.ns / duration.count / 1000:.1f}"


def _statistics(
    channel: grpc.Channel, model: str
) -> Sequence[inference_pb2.ModelStatistics]:
    stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
    request = inference_pb2.ModelStatisticsRequest(name=model)
    return stub.ModelStatistics(request, timeout=_TIMEOUT_S).model_stats


def _reset(channel: grpc.Channel, model: str) -> str:
    stub = control_pb2_grpc.StatisticsControlStub(channel)
    request = control_pb2.ResetStatisticsRequest(model=model)
    versions = stub.ResetStatistics(request, timeout=_TIMEOUT_S).versions
    named = ", ".join(map(str, versions)) or "none, nothing was counted"
    return f"reset {model}, versions: {named}\n"


def _is_ours(path: Path) -> bool:
    with contextlib.suppress(OSError):
        about = path.stat()
        return stat.S_ISSOCK(about.st_mode) and about.st_uid == os.getuid()
    return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nereid stats",
        description="Show what was counted of the models that are ready.",
    )
    parser.add_argument("model", nargs="?", default="", help="only this one")
    parser.add_argument(
        "--reset", default="", metavar="MODEL", help="set its counters to zero"
    )
    parser.add_argument(
        "--control",
        default="",
        metavar="TARGET",
        help="unix:PATH or HOST:PORT (default: the nereid serve of this user)",
    )
    return parser
