"""A traced request as the spans of OpenTelemetry. Pure.

Source: Triton's OpenTelemetry mode. A root span for the client's request, below it a
span for each model with one for its execution; the timestamps are their events.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from services.control.trace_records import Trace

ROOT_NAME: Final = "InferRequest"
COMPUTE_NAME: Final = "compute"
_OF_MODEL: Final = (
    "REQUEST_START",
    "QUEUE_START",
    "INFER_RESPONSE_COMPLETE",
    "REQUEST_END",
)
_OF_COMPUTE: Final = (
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
)

Events = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """One span.

    Attributes:
        name: What it is called.
        start_ns: Nanoseconds since 1970, as all times here.
        end_ns: The same.
        attributes: By name.
        events: (name, time), in order.
        error: Why it failed; empty if it did not.
        children: Spans within it.
    """

    name: str
    start_ns: int
    end_ns: int
    attributes: tuple[tuple[str, str | int], ...] = ()
    events: Events = ()
    error: str = ""
    children: Sequence["SpanRecord"] = ()


def spans_of(trace: Trace, first_id: int) -> tuple[SpanRecord | None, int]:
    """Return the span of a client's request, with all within it.

    Args:
        trace: With its times.
        first_id: The id of its model's span; those of an ensemble's steps follow.

    Returns:
        The root, None if the trace has no times; and the next id.
    """
    ids = _Ids(first_id)
    model = _model_span(trace, ids, parent_id=0)
    if model is None:
        return None, ids.next_id
    inner = {*_OF_MODEL, *_OF_COMPUTE}
    events = _wall(trace, [e for e in trace.timestamps if e[0] not in inner])
    times = [ns for _, ns in _wall(trace, trace.timestamps)]
    root = SpanRecord(
        name=ROOT_NAME,
        start_ns=min(times),
        end_ns=max(times),
        events=events,
        error=trace.error,
        children=(model,),
    )
    return root, ids.next_id


@dataclass(slots=True)
class _Ids:
    next_id: int

    def take(self) -> int:
        self.next_id += 1
        return self.next_id - 1


def _model_span(trace: Trace, ids: _Ids, *, parent_id: int) -> SpanRecord | None:
    own_id = ids.take()
    events = _events(trace, _OF_MODEL)
    if not events:
        return None
    attributes: list[tuple[str, str | int]] = [
        ("triton.model_name", trace.model),
        ("triton.model_version", trace.version),
        ("triton.trace_id", own_id),
        ("triton.trace_parent_id", parent_id),
    ]
    if trace.request_id:
        attributes.append(("triton.request_id", trace.request_id))
    steps = (_model_span(child, ids, parent_id=own_id) for child in trace.children)
    return SpanRecord(
        name=trace.model,
        start_ns=events[0][1],
        end_ns=events[-1][1],
        attributes=tuple(attributes),
        events=events,
        error=trace.error,
        children=(*_compute(trace), *(step for step in steps if step is not None)),
    )


def _compute(trace: Trace) -> Iterator[SpanRecord]:
    events = _events(trace, _OF_COMPUTE)
    if events:
        yield SpanRecord(
            name=COMPUTE_NAME,
            start_ns=events[0][1],
            end_ns=events[-1][1],
            events=events,
        )


def _events(trace: Trace, names: Sequence[str]) -> Events:
    return _wall(trace, [each for each in trace.timestamps if each[0] in names])


def _wall(trace: Trace, events: Sequence[tuple[str, int]]) -> Events:
    offset_ns = trace.wall_clock_offset_ns
    return tuple((name, ns + offset_ns) for name, ns in events)
