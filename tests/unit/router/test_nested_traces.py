"""What models ask of others while they are traced, through the router's real doors."""

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from protos import inference_pb2 as pb
from services.core.trace_token import TRACE_PARAMETER, TraceToken
from services.router.request_trace import RequestTrace
from services.router.route_table import RouteTable
from services.router.trace_arrival import arrival_of
from services.router.trace_sampler import TraceScope, TraceSettings
from services.router.tracer import Tracer
from tests.unit.router.ensembles import ensemble, step
from tests.unit.router.routes import add_sub, add_sub_request, route
from tests.unit.router.running import PuppetWorker, RunningRouter, running_router
from tests.unit.router.summing import raw, sums

ASKER, ASKED, PLAIN = 10, 11, 12


class Outlet:
    """Hands traces to the test's thread."""

    def __init__(self) -> None:
        self.sessions: list[int] = []
        self.traces: SimpleQueue[RequestTrace] = SimpleQueue()

    def sampled(self, session: int) -> None:
        self.sessions.append(session)

    def ended(self, scope: TraceScope, trace: RequestTrace) -> None:
        del scope
        self.traces.put(trace)

    def next(self) -> RequestTrace:
        return self.traces.get(timeout=5)


@pytest.fixture
def outlet() -> Outlet:
    return Outlet()


@pytest.fixture
def router(tmp_path: Path, outlet: Outlet) -> Iterator[RunningRouter]:
    """A router of which every request to "asker" is traced, and no other."""
    with running_router(tmp_path) as router:
        router.apply(
            RouteTable.of(
                [
                    route(add_sub("asker", backend="python"), generation=ASKER),
                    route(add_sub("asked", backend="python"), generation=ASKED),
                    route(add_sub("plain"), generation=PLAIN),
                    route(
                        ensemble(
                            step(
                                "asker",
                                {"INPUT0": "A", "INPUT1": "A"},
                                {"OUTPUT0": "Z"},
                            )
                        ),
                        generation=13,
                    ),
                ]
            )
        )
        tracer = Tracer(outlet, arrival_of, endpoint="unix:/here")
        on, off = TraceScope(session=1, rate=1), TraceScope(session=2)
        models = {"asker": on, "ens": on}
        tracer.follow(TraceSettings(overall=off, models=models))
        router.on_loop(lambda: router.inference.trace_by(tracer))
        yield router


def token_of(request: pb.ModelInferRequest) -> str:
    return request.parameters[TRACE_PARAMETER].string_param


def ask(router: RunningRouter, model: str, trace: str) -> Any:  # noqa: ANN401 - a grpc future
    """Send what a model sends that was given ``trace``."""
    request = add_sub_request(model_name=model)
    request.parameters[TRACE_PARAMETER].string_param = trace
    return router.infer(request)


def answered(worker: PuppetWorker, future: Any) -> None:  # noqa: ANN401
    worker.answer_next()
    future.result(timeout=5)


def shape(trace: RequestTrace) -> dict[str, object]:
    """Return who asked whom."""
    below: dict[str, object] = {}
    for each in (*trace.steps.values(), *trace.nested):
        below |= shape(each)
    return {trace.model: below}


def test_what_a_model_asks_of_others_is_part_of_its_trace(
    router: RunningRouter, outlet: Outlet
) -> None:
    asker, asked = router.worker(ASKER), router.worker(ASKED)
    plain = router.worker(PLAIN)
    first = router.infer(add_sub_request(model_name="asker"))
    (request,) = asker.next_batch()
    token = TraceToken.read(token_of(request))
    assert token is not None
    assert token.endpoint == "unix:/here"
    second = ask(router, "asked", token.text)
    (nested,) = asked.next_batch()
    answered(plain, ask(router, "plain", token_of(nested)))
    asked.answer(nested)
    second.result(timeout=5)
    asker.answer(request)
    first.result(timeout=5)
    trace = outlet.next()
    assert shape(trace) == {"asker": {"asked": {"plain": {}}}}
    names = [name for name, _ in trace.nested[0].timestamps]
    assert (names[0], names[-1]) == ("REQUEST_START", "REQUEST_END")
    assert "COMPUTE_START" in names
    # The count is of what clients sent.
    assert outlet.sessions == [1]


def test_a_trace_waits_for_what_outlives_its_request(
    router: RunningRouter, outlet: Outlet
) -> None:
    asker, plain = router.worker(ASKER), router.worker(PLAIN)
    first = router.infer(add_sub_request(model_name="asker"))
    (request,) = asker.next_batch()
    second = ask(router, "plain", token_of(request))
    (nested,) = plain.next_batch()
    asker.answer(request)
    first.result(timeout=5)
    router.on_loop(lambda: None)
    assert outlet.traces.empty()
    plain.answer(nested)
    second.result(timeout=5)
    assert shape(outlet.next()) == {"asker": {"plain": {}}}


def test_what_is_asked_for_a_trace_that_is_over_is_not_traced(
    router: RunningRouter, outlet: Outlet
) -> None:
    asker = router.worker(ASKER)
    first = router.infer(add_sub_request(model_name="asker"))
    (request,) = asker.answer_next()
    first.result(timeout=5)
    assert shape(outlet.next()) == {"asker": {}}
    for text in (token_of(request), "what no router says"):
        answered(asker, ask(router, "asker", text))
    router.on_loop(lambda: None)
    assert outlet.traces.empty()
    assert outlet.sessions == [1]


def test_one_that_is_cancelled_ends_its_part(
    router: RunningRouter, outlet: Outlet
) -> None:
    asker = router.worker(ASKER)
    first = router.infer(add_sub_request(model_name="asker"))
    (request,) = asker.next_batch()
    second = ask(router, "plain", token_of(request))
    assert router.eventually(lambda: bool(router.inference.waiting()))
    second.cancel()
    asker.answer(request)
    first.result(timeout=5)
    (nested,) = outlet.next().nested
    assert nested.error == "the client has left"


def test_a_step_of_an_ensemble_asks_for_its_own_sake(
    router: RunningRouter, outlet: Outlet
) -> None:
    asker, plain = router.worker(ASKER), router.worker(PLAIN)
    head = pb.ModelInferRequest.InferInputTensor(
        name="A", datatype="INT32", shape=[1, 16]
    )
    first = router.infer(
        pb.ModelInferRequest(
            model_name="ens", inputs=[head], raw_input_contents=[raw(5)]
        )
    )
    batch = asker.next_batch()
    answered(plain, ask(router, "plain", token_of(batch[0])))
    asker.answers.put(sums(batch))
    first.result(timeout=5)
    assert shape(outlet.next()) == {"ens": {"asker": {"plain": {}}}}


def test_models_that_cannot_ask_are_told_nothing(
    router: RunningRouter, outlet: Outlet
) -> None:
    tracer = Tracer(outlet, arrival_of)
    tracer.follow(TraceSettings(overall=TraceScope(session=1, rate=1)))
    router.on_loop(lambda: router.inference.trace_by(tracer))
    plain = router.worker(PLAIN)
    first = router.infer(add_sub_request(model_name="plain"))
    (request,) = plain.answer_next()
    first.result(timeout=5)
    assert TRACE_PARAMETER not in request.parameters
    assert shape(outlet.next()) == {"plain": {}}
