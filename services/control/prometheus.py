"""Prometheus' text exposition format, version 0.0.4. Pure."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One line.

    Attributes:
        labels: By name.
        value: Of the series.
        suffix: Behind the family's name: ``_sum``, ``_count``, ``_bucket`` or "".
    """

    labels: Labels
    value: float
    suffix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Series of one name.

    Attributes:
        name: Of all of them.
        text: What they tell, one line.
        kind: counter, gauge, histogram or summary.
        samples: In any order.
    """

    name: str
    text: str
    kind: str
    samples: tuple[Sample, ...]


def gauge(name: str, text: str, *samples: tuple[Labels, float]) -> Family:
    """Return a family of gauges, from labels and values."""
    return _plain("gauge", name, text, samples)


def counter(name: str, text: str, *samples: tuple[Labels, float]) -> Family:
    """Return a family of counters, from labels and values."""
    return _plain("counter", name, text, samples)


def histogram_samples(
    labels: Labels, counts: Mapping[float, int], total: float
) -> Iterator[Sample]:
    """Yield the lines of one histogram.

    Args:
        labels: Of all of them.
        counts: How many values each bucket holds alone, by its upper bound, with
            that of infinity or without.
        total: The sum of all values.
    """
    below = 0
    for bound in sorted({*counts, math.inf}):
        below += counts.get(bound, 0)
        labels_of_bucket = {**labels, "le": _number(bound)}
        yield Sample(labels=labels_of_bucket, value=below, suffix="_bucket")
    yield Sample(labels=labels, value=total, suffix="_sum")
    yield Sample(labels=labels, value=below, suffix="_count")


def render(families: Iterable[Family]) -> str:
    """Return the page; families without series are left out."""
    lines = (line for family in families if family.samples for line in _lines(family))
    return "".join(f"{line}\n" for line in lines)


def _plain(
    kind: str, name: str, text: str, samples: Iterable[tuple[Labels, float]]
) -> Family:
    return Family(
        name=name,
        text=text,
        kind=kind,
        samples=tuple(Sample(labels=labels, value=value) for labels, value in samples),
    )


def _lines(family: Family) -> Iterator[str]:
    text = family.text.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {family.name} {text}"
    yield f"# TYPE {family.name} {family.kind}"
    for sample in family.samples:
        pairs = ",".join(
            f'{key}="{_escape(each)}"' for key, each in sample.labels.items()
        )
        labels = f"{{{pairs}}}" if pairs else ""
        yield f"{family.name}{sample.suffix}{labels} {_number(sample.value)}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
