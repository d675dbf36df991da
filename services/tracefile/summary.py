"""How long the phases of requests took, model by model. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from services.tracefile.records import PHASES, WHOLE, TracedRequest

_COLUMNS: Final = {"request": WHOLE, **PHASES}
_NOTHING: Final = "-"


def percentile(values: Sequence[int], percent: int) -> int:
    """Return the smallest value that so many percent do not exceed.

    Args:
        values: At least one.
        percent: 1 to 100.
    """
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[rank - 1]


def summary(requests: Iterable[TracedRequest]) -> str:
    """Return a table: a line for each model, p50 and p99 of each phase."""
    by_model: Mapping[tuple[str, int], list[TracedRequest]] = defaultdict(list)
    for request in requests:
        by_model[request.model, request.version].append(request)
    rows = [["model", "version", "traces", *_COLUMNS]]
    for (model, version), found in sorted(by_model.items()):
        cells = [_cell(found, choices) for choices in _COLUMNS.values()]
        rows.append([model or "?", str(version), str(len(found)), *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "p50/p99 in microseconds\n\n" + "\n".join(lines) + "\n"


def _cell(
    requests: Iterable[TracedRequest], choices: tuple[tuple[str, str], ...]
) -> str:
    spans = (request.span(choices) for request in requests)
    durations = [span[1] - span[0] for span in spans if span is not None]
    if not durations:
        return _NOTHING
    halves = (percentile(durations, percent) / 1e3 for percent in (50, 99))
    return "/".join(f"{each:.0f}" for each in halves)
