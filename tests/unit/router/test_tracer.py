"""Traced requests on the stage: what is noted of them, and that nobody notices."""

from dataclasses import dataclass, field

import grpc
import pytest

from protos import control_pb2, worker_pb2
from services.core.errors import OverloadedError
from services.core.model_config import DynamicBatching
from services.router.pending_request import PendingRequest
from services.router.request_trace import RequestTrace
from services.router.trace_reporter import TraceReporter, settings_from_proto
from services.router.trace_sampler import TraceScope, TraceSettings
from services.router.trace_tree import TraceTree
from services.router.traced_request import Arrival
from services.router.tracer import Tracer
from tests.unit.router.routes import add_sub, add_sub_request
from tests.unit.router.stage import (
    MS,
    PuppetInstance,
    PuppetRequest,
    Stage,
    error,
    response,
    staged,
)

ARRIVAL = Arrival(
    received=(("HTTP_RECV_START", 1), ("HTTP_RECV_END", 2)), send_prefix="HTTP_SEND"
)


@dataclass
class Outlet:
    """Keeps what it is given."""

    started: list[int] = field(default_factory=list)
    traces: list[RequestTrace] = field(default_factory=list)

    def sampled(self, session: int) -> None:
        self.started.append(session)

    def ended(self, scope: TraceScope, trace: RequestTrace) -> None:
        assert scope.session == self.started[0]
        self.traces.append(trace)


class Theatre:
    """A stage whose every request is traced."""

    def __init__(self, stage: Stage, *, tensors: bool = False, rate: int = 1) -> None:
        self.stage = stage
        self.outlet = Outlet()
        self.tracer = Tracer(self.outlet, lambda _: ARRIVAL, lambda: stage.clock_ns)
        scope = TraceScope(session=5, rate=rate, tensors=tensors)
        self.tracer.follow(TraceSettings(overall=scope))
        self.taker = self.tracer.taker_for(stage.scheduler, stage.scheduler)

    def enqueue(self, *names: str) -> list[PuppetRequest]:
        body = add_sub_request(id="r7").SerializeToString()
        requests = [
            PuppetRequest(name, enqueued_ns=self.stage.clock_ns, body=body)
            for name in names
        ]
        for request in requests:
            self.taker.enqueue(request)
        self.stage.reactor.drain()
        return requests

    def complete(self, instance: PuppetInstance, *replies: worker_pb2.Reply) -> None:
        """Answer as an instance's stream does: the tracer is told first."""
        timing = worker_pb2.BatchTiming(
            compute_input_ns=1 * MS, compute_infer_ns=2 * MS, compute_output_ns=3 * MS
        )
        message = worker_pb2.BatchResponse(timing=timing, reply=replies)
        execution, serialized = instance.held.pop(0), message.SerializeToString()
        self.tracer.executed(execution, serialized)
        self.stage.scheduler.completed(instance, execution, serialized)


@pytest.fixture
def theatre() -> Theatre:
    return Theatre(staged(add_sub()))


def test_the_times_of_a_request_are_in_order_and_of_the_right_length(
    theatre: Theatre,
) -> None:
    stage = theatre.stage
    stage.clock_ns = 10 * MS
    (request,) = theatre.enqueue("a")
    stage.clock_ns = 20 * MS
    instance = stage.instance()
    stage.clock_ns = 30 * MS
    theatre.complete(instance, response(b"A"))
    assert request.outcome == [b"A"]
    (trace,) = theatre.outlet.traces
    # 10 ms went by from dispatch to answer, the worker knows of 6.
    assert trace.timestamps == [
        ("HTTP_RECV_START", 1),
        ("HTTP_RECV_END", 2),
        ("REQUEST_START", 10 * MS),
        ("QUEUE_START", 10 * MS),
        ("COMPUTE_START", 22 * MS),
        ("COMPUTE_INPUT_END", 23 * MS),
        ("COMPUTE_OUTPUT_START", 25 * MS),
        ("COMPUTE_END", 28 * MS),
        ("INFER_RESPONSE_COMPLETE", 30 * MS),
        ("REQUEST_END", 30 * MS),
        ("HTTP_SEND_START", 30 * MS),
        ("HTTP_SEND_END", 30 * MS),
    ]
    assert (trace.model, trace.version, trace.request_id) == ("simple", 1, "r7")
    assert (trace.request, trace.response) == (b"", b"")


def test_tensors_are_kept_where_they_are_asked_for() -> None:
    theatre = Theatre(staged(add_sub()), tensors=True)
    (request,) = theatre.enqueue("a")
    theatre.complete(theatre.stage.instance(), response(b"A"))
    (trace,) = theatre.outlet.traces
    assert (trace.request, trace.response) == (request.body, b"A")


def test_only_what_is_sampled_is_watched(theatre: Theatre) -> None:
    theatre = Theatre(staged(add_sub()), rate=2)
    requests = theatre.enqueue("a", "b", "c")
    instance = theatre.stage.instance()
    theatre.complete(instance, *(response(b"%d" % n) for n in range(3)))
    assert [request.outcome for request in requests] == [[b"0"], [b"1"], [b"2"]]
    assert theatre.outlet.started == [5]
    assert len(theatre.outlet.traces) == 1


def test_with_tracing_off_requests_go_straight_to_the_scheduler() -> None:
    stage = staged(add_sub())
    tracer = Tracer(Outlet(), lambda _: ARRIVAL)
    assert tracer.taker_for(stage.scheduler, stage.scheduler) is stage.scheduler


def test_answers_are_not_looked_into_while_nothing_is_traced() -> None:
    theatre = Theatre(staged(add_sub()), rate=2)
    instance = theatre.stage.instance()
    theatre.enqueue("plain", "traced")
    theatre.complete(instance, response(b"A"), response(b"B"))
    assert theatre.tracer._under_way == 0
    theatre.outlet.traces.clear()
    theatre.enqueue("a")
    (execution,) = instance.held
    theatre.tracer.executed(execution, b"\x0a")
    assert theatre.outlet.traces == []


def test_a_request_that_failed_is_traced_with_its_error(theatre: Theatre) -> None:
    (request,) = theatre.enqueue("a")
    theatre.complete(theatre.stage.instance(), error(3, "bad"))
    assert request.outcome == [(3, "bad")]
    (trace,) = theatre.outlet.traces
    assert trace.error == "bad"
    assert trace.timestamps[-1][0] == "HTTP_SEND_END"


def test_a_request_that_was_refused_has_no_execution(theatre: Theatre) -> None:
    theatre.enqueue("a")
    theatre.stage.scheduler.refuse_all(OverloadedError("too much"))
    (trace,) = theatre.outlet.traces
    assert trace.error == "too much"
    assert "COMPUTE_START" not in dict(trace.timestamps)


def test_a_client_that_left_ends_its_trace_once(theatre: Theatre) -> None:
    left, stays = theatre.enqueue("left", "stays")
    left.open = False
    theatre.taker.forget(left)
    instance = theatre.stage.instance()
    theatre.complete(instance, response(b"A"))
    assert (left.outcome, stays.outcome) == ([], [b"A"])
    assert [trace.error for trace in theatre.outlet.traces] == [
        "the client has left",
        "",
    ]


def test_a_client_that_left_while_its_request_was_executed_ends_its_trace_once(
    theatre: Theatre,
) -> None:
    instance = theatre.stage.instance()
    (left,) = theatre.enqueue("left")
    left.open = False
    theatre.taker.forget(left)
    theatre.complete(instance, response(b"A"))
    assert left.outcome == []
    assert len(theatre.outlet.traces) == 1


def test_of_a_request_that_ran_twice_the_second_run_counts(theatre: Theatre) -> None:
    theatre.enqueue("a")
    theatre.stage.lose(theatre.stage.instance("w1"))
    theatre.stage.clock_ns = 40 * MS
    instance = theatre.stage.instance("w2")
    theatre.stage.clock_ns = 50 * MS
    theatre.complete(instance, response(b"A"))
    (trace,) = theatre.outlet.traces
    names = [name for name, _ in trace.timestamps]
    assert names.count("COMPUTE_START") == 1
    assert dict(trace.timestamps)["COMPUTE_START"] == 42 * MS


def test_of_a_batch_that_was_too_large_only_its_second_run_is_left(
    theatre: Theatre,
) -> None:
    instance = theatre.stage.instance()
    theatre.enqueue("a", "b")
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    theatre.complete(instance, error(exhausted, "full"), error(exhausted, "full"))
    while instance.held:
        theatre.complete(instance, response(b"A"))
        theatre.stage.reactor.drain()
    for trace in theatre.outlet.traces:
        names = [name for name, _ in trace.timestamps]
        assert names.count("COMPUTE_START") == 1
    assert len(theatre.outlet.traces) == 2


def test_a_request_in_order_is_found_behind_who_stands_for_it() -> None:
    batching = DynamicBatching(preserve_ordering=True)
    theatre = Theatre(staged(add_sub(dynamic_batching=batching)))
    (request,) = theatre.enqueue("a")
    theatre.complete(theatre.stage.instance(), response(b"A"))
    assert request.outcome == [b"A"]
    (trace,) = theatre.outlet.traces
    assert "COMPUTE_END" in dict(trace.timestamps)


def test_a_traced_request_may_have_its_times_in_its_response(theatre: Theatre) -> None:
    request = PuppetRequest("a", body=add_sub_request().SerializeToString())
    theatre.taker.time(request)
    theatre.taker.enqueue(request)
    theatre.stage.reactor.drain()
    theatre.complete(theatre.stage.instance(), response(b""))
    (message,) = request.outcome
    assert isinstance(message, bytes)
    assert b"nereid_queue_ns" in message


def test_a_caller_that_is_traced_is_followed_from_its_header() -> None:
    stage = staged(add_sub())
    outlet = Outlet()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def arrival_of(request: PendingRequest) -> Arrival:
        assert isinstance(request, PuppetRequest)
        return Arrival(traceparent=parent if request.name == "traced" else "")

    tracer = Tracer(outlet, arrival_of)
    scope = TraceScope(session=5, rate=1000)
    tracer.follow(TraceSettings(overall=scope, follows_callers=True))
    taker = tracer.taker_for(stage.scheduler, stage.scheduler)
    for name in ("plain", "traced"):
        taker.enqueue(PuppetRequest(name))
    stage.scheduler.close()
    assert [trace.traceparent for trace in outlet.traces] == [parent]


# ------------------------------------------------------------ to control


@dataclass
class Wire:
    """Holds what is sent, and the timers."""

    reports: list[control_pb2.RouterReport] = field(default_factory=list)
    due: list[object] = field(default_factory=list)

    def reporter(self) -> TraceReporter:
        return TraceReporter(self.reports.append, lambda _, call: self.due.append(call))


def test_traces_travel_together_and_before_an_acknowledgement() -> None:
    wire = Wire()
    reporter = wire.reporter()
    scope = TraceScope(session=5, rate=1)
    reporter.sampled(5)
    trace = RequestTrace(
        model="m",
        version=2,
        timestamps=[("REQUEST_START", 3)],
        tree=TraceTree(lambda: None),
    )
    trace.steps[PuppetRequest("s")] = RequestTrace(
        model="s", version=1, is_step=True, tree=trace.tree
    )
    reporter.ended(scope, trace)
    assert wire.reports == []
    assert len(wire.due) == 1
    reporter.applied(9)
    report, applied = wire.reports
    assert list(report.trace_report.sampled) == [5]
    (ended,) = report.trace_report.ended
    assert (ended.session, ended.request.model) == (5, "m")
    assert [t.name for t in ended.request.timestamps] == ["REQUEST_START"]
    assert [step.model for step in ended.request.children] == ["s"]
    assert applied.trace_settings_applied.revision == 9
    reporter.flush()
    assert len(wire.reports) == 2


def test_times_that_nobody_asked_for_stay_here() -> None:
    wire = Wire()
    reporter = wire.reporter()
    trace = RequestTrace(
        model="m",
        version=2,
        timestamps=[("REQUEST_START", 3)],
        tree=TraceTree(lambda: None),
    )
    reporter.ended(TraceScope(session=5, rate=1, timestamps=False), trace)
    reporter.flush()
    (report,) = wire.reports
    assert not report.trace_report.ended[0].request.timestamps


def test_settings_arrive_as_control_sent_them() -> None:
    message = control_pb2.TraceSettings(
        revision=1,
        open_telemetry=True,
        overall=control_pb2.TraceScope(session=4, rate=2, count=-1, timestamps=True),
        models={"m": control_pb2.TraceScope(session=5, rate=0, count=3, tensors=True)},
    )
    assert settings_from_proto(message) == TraceSettings(
        overall=TraceScope(session=4, rate=2, count=-1),
        models={
            "m": TraceScope(session=5, rate=0, count=3, timestamps=False, tensors=True)
        },
        follows_callers=True,
    )
