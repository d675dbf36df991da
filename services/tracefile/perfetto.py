"""Traces in the form that Perfetto and Chrome show. Pure.

Source: the Trace Event Format. Every model is a process there, every request a thread
of its own, so that requests which overlap do not hide each other.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Final

from services.tracefile.records import PHASES, WHOLE, TracedRequest

_COMPLETE: Final = "X"
_METADATA: Final = "M"

Event = dict[str, object]


def to_json(requests: Sequence[TracedRequest]) -> str:
    """Return a JSON document with an event for each request and each phase."""
    times = [ns for request in requests for ns in request.times_ns.values()]
    begin_ns = min(times, default=0)
    models = sorted({request.model for request in requests})
    events: list[Event] = [
        _name("process_name", model, process=number)
        for number, model in enumerate(models, start=1)
    ]
    for request in requests:
        process = models.index(request.model) + 1
        events.append(
            _name("thread_name", _title(request), process, thread=request.number)
        )
        place: Event = {"pid": process, "tid": request.number}
        events.extend(event | place for event in _spans(request, begin_ns))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})


def _spans(request: TracedRequest, begin_ns: int) -> Iterator[Event]:
    spans = {"request": request.span(WHOLE)}
    spans |= {name: request.span(choices) for name, choices in PHASES.items()}
    for name, span in spans.items():
        if span is not None:
            yield {
                "name": name,
                "ph": _COMPLETE,
                "ts": (span[0] - begin_ns) / 1e3,
                "dur": (span[1] - span[0]) / 1e3,
                "args": _arguments(request) if name == "request" else {},
            }


def _arguments(request: TracedRequest) -> dict[str, object]:
    arguments: dict[str, object] = {"version": request.version}
    if request.request_id:
        arguments["request_id"] = request.request_id
    if request.parent:
        arguments["step_of"] = request.parent
    return arguments


def _title(request: TracedRequest) -> str:
    step = f", step of {request.parent}" if request.parent else ""
    return f"request {request.number}{step}"


def _name(kind: str, text: str, process: int, thread: int = 0) -> Event:
    return {
        "name": kind,
        "ph": _METADATA,
        "pid": process,
        "tid": thread,
        "args": {"name": text},
    }
