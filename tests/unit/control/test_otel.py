"""OpenTelemetry: which spans a trace becomes, and that a collector gets them."""

import pytest

from services.control.otel_export import OtelExporter, is_installed
from services.control.otel_options import DEFAULT_URL, OtelOptions, read_options
from services.control.trace_records import Trace
from services.control.trace_spans import spans_of
from tests.support.otel_collector import attributes_of, running_collector

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
TIMES = (
    ("HTTP_RECV_START", 1),
    ("REQUEST_START", 2),
    ("QUEUE_START", 3),
    ("COMPUTE_START", 4),
    ("COMPUTE_END", 5),
    ("INFER_RESPONSE_COMPLETE", 6),
    ("REQUEST_END", 7),
    ("HTTP_SEND_END", 8),
)


def trace(model: str = "m", *children: Trace, **fields: str) -> Trace:
    return Trace(
        model=model,
        version=2,
        request_id="r",
        timestamps=TIMES,
        children=children,
        wall_clock_offset_ns=100,
        **fields,  # type: ignore[arg-type]
    )


def test_a_request_is_a_root_its_model_and_its_execution() -> None:
    root, next_id = spans_of(trace(), 7)
    assert root is not None
    assert (root.name, root.start_ns, root.end_ns) == ("InferRequest", 101, 108)
    assert root.events == (("HTTP_RECV_START", 101), ("HTTP_SEND_END", 108))
    (model,) = root.children
    assert (model.name, model.start_ns, model.end_ns) == ("m", 102, 107)
    assert dict(model.attributes) == {
        "triton.model_name": "m",
        "triton.model_version": 2,
        "triton.trace_id": 7,
        "triton.trace_parent_id": 0,
        "triton.request_id": "r",
    }
    (compute,) = model.children
    assert (compute.name, compute.start_ns, compute.end_ns) == ("compute", 104, 105)
    assert next_id == 8


def test_the_steps_of_an_ensemble_are_within_its_span() -> None:
    root, next_id = spans_of(trace("ens", trace("a"), trace("b")), 1)
    assert root is not None
    (ensemble,) = root.children
    assert [child.name for child in ensemble.children] == ["compute", "a", "b"]
    parents = [
        dict(c.attributes)["triton.trace_parent_id"] for c in ensemble.children[1:]
    ]
    assert parents == [1, 1]
    assert next_id == 4


def test_a_trace_without_times_has_no_span() -> None:
    assert spans_of(Trace(model="m", version=1), 3) == (None, 4)


def test_options_are_read_with_their_defaults() -> None:
    assert read_options(()) == OtelOptions(
        url=DEFAULT_URL, resource={"service.name": "nereid"}
    )
    options = read_options(
        (
            ("url", "http://c/v1/traces"),
            ("resource", "service.name=mine"),
            ("resource", "k=a=b"),
            ("bsp_schedule_delay", "5"),
        )
    )
    assert options.resource == {"service.name": "mine", "k": "a=b"}
    assert options.schedule_delay_ms == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("resource", "x"),
        ("bsp_schedule_delay", "0"),
        ("bsp_max_queue_size", "x"),
        ("bsp_max_export_batch_size", "9999"),
        ("nope", "1"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        read_options(((name, value),))


def test_the_extra_is_found() -> None:
    assert is_installed()


def test_a_collector_gets_the_spans_as_children_of_the_caller() -> None:
    with running_collector() as collector:
        options = OtelOptions(url=collector.url, resource={"service.name": "s"})
        exporter = OtelExporter(options)
        root, _ = spans_of(trace(error="bad"), 7)
        assert root is not None
        exporter.export(root, PARENT)
        exporter.close()
        spans = {span.name: span for span in collector.spans(3)}
    assert collector.resources["service.name"] == "s"
    first, model, compute = (spans[n] for n in ("InferRequest", "m", "compute"))
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE_ID}
    assert first.parent_span_id.hex() == "b7ad6b7169203331"
    assert model.parent_span_id == first.span_id
    assert compute.parent_span_id == model.span_id
    assert (model.start_time_unix_nano, model.end_time_unix_nano) == (102, 107)
    assert [(e.name, e.time_unix_nano) for e in compute.events] == [
        ("COMPUTE_START", 104),
        ("COMPUTE_END", 105),
    ]
    assert attributes_of(model)["triton.model_name"] == "m"
    assert first.status.message == "bad"


def test_without_a_caller_a_trace_of_its_own_begins() -> None:
    with running_collector() as collector:
        exporter = OtelExporter(OtelOptions(url=collector.url))
        root, _ = spans_of(trace(), 7)
        assert root is not None
        exporter.export(root, "")
        exporter.close()
        spans = collector.spans(3)
    assert [s.name for s in spans if not s.parent_span_id] == ["InferRequest"]


def test_a_caller_that_is_not_sampled_does_not_undo_our_own_sampling() -> None:
    with running_collector() as collector:
        exporter = OtelExporter(OtelOptions(url=collector.url))
        root, _ = spans_of(trace(), 7)
        assert root is not None
        exporter.export(root, PARENT[:-1] + "0")
        exporter.close()
        assert {span.trace_id.hex() for span in collector.spans(3)} == {TRACE_ID}
