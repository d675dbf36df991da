"""Decoupled models, from the router's batch to streamed replies."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from protos import inference_pb2, worker_pb2
from services.core.backlog import MOST_BYTES
from services.core.datatype import DataType
from services.core.errors import BackendError
from services.worker import wire
from services.worker.backend import (
    BackendCall,
    BackendFailure,
    BackendReply,
    Deliver,
    Pace,
    ReplyTensor,
)
from services.worker.instance import Instance
from services.worker.runs import StreamedRun
from services.worker.streamed_execution import StreamedExecution
from tests.support.eventually import eventually
from tests.unit.worker.messages import batch, ints, request, signature, tensor
from tests.unit.worker.puppets import (
    WAIT_S,
    ManualClock,
    PuppetRouters,
    PuppetStream,
)

FINAL = True
MORE = False

SIGNATURE = signature([tensor("A")], [tensor("SUM")])


class PuppetModel:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Sequence[BackendCall]] = []
        self.deliver: list[Deliver] = []
        self.cancelled: list[tuple[int, int]] = []
        self.during: Callable[[Deliver], None] = lambda _: None
        self.outcome: list[BackendFailure | None] | Exception | None = None

    def execute_decoupled(
        self,
        calls: Sequence[BackendCall],
        deliver: Deliver,
        cancel_with: Callable[[Callable[[int], None]], None],
    ) -> Sequence[BackendFailure | None]:
        number = len(self.calls)
        self.calls.append(calls)
        self.deliver.append(deliver)
        cancel_with(lambda call: self.cancelled.append((number, call)))
        self.during(deliver)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome or [None] * len(calls)

    def unload(self) -> None:
        pass


@contextmanager
def serving(model: PuppetModel, step_ns: int = 0) -> Iterator[PuppetStream]:
    """Serve one router; at the end everything must have been answered."""
    execution = StreamedExecution(SIGNATURE, model, ManualClock(step_ns))
    routers = PuppetRouters()
    instance = Instance("m_0", StreamedRun(execution.run), routers.open)
    instance.connect(["r"])
    stream = routers.accept()
    yield stream
    instance.connect([])
    assert stream.finished.wait(WAIT_S)
    stream.end()
    instance.stop()


def received(stream: PuppetStream) -> worker_pb2.BatchResponse:
    return worker_pb2.BatchResponse.FromString(stream.sent.get(timeout=WAIT_S))


def streamed(stream: PuppetStream) -> tuple[int, int, bool, str | list[int] | None]:
    """Return batch, request, final flag and reply of a message that only streams."""
    message = received(stream)
    assert not message.HasField("timing")
    (one,) = message.streamed
    said: str | list[int] | None = None
    if one.HasField("reply"):
        said = reply(one.reply)
    return (one.batch, one.request, one.final, said)


def reply(message: worker_pb2.Reply) -> str | list[int]:
    if message.WhichOneof("outcome") == "error":
        return message.error.message
    response = inference_pb2.ModelInferResponse.FromString(message.response)
    assert response.outputs[0].name == "SUM"
    numbers: list[int] = np.frombuffer(
        response.raw_output_contents[0], np.int32
    ).tolist()
    return numbers


def answer(*values: int) -> BackendReply:
    data = memoryview(np.array(values, np.int32).tobytes())
    shape = (1, len(values))
    return BackendReply((ReplyTensor(0, DataType.INT32, shape, data),), {})


def ended(stream: PuppetStream) -> list[str]:
    """Return the errors of the message that ends an execution, "" for none."""
    message = received(stream)
    assert message.HasField("timing")
    assert not message.streamed
    return [one.error.message for one in message.reply]


ONE = request({"A": ints(1, 0, 0, 0)})
BAD = request({"A": np.ones((1, 3), np.int32)})


def test_replies_come_before_and_after_the_end_of_their_execution() -> None:
    model = PuppetModel()
    model.during = lambda deliver: deliver(0, answer(1), MORE)
    with serving(model) as stream:
        stream.deliver(batch(ONE))
        assert streamed(stream) == (0, 0, False, [1])
        assert ended(stream) == [""]
        model.deliver[0](0, answer(2), FINAL)
        assert streamed(stream) == (0, 0, True, [2])


def test_replies_name_their_batch_and_their_request() -> None:
    model = PuppetModel()
    with serving(model) as stream:
        stream.deliver(batch(ONE, BAD, ONE))
        assert [bool(text) for text in ended(stream)] == [False, True, False]
        stream.deliver(batch(ONE))
        assert ended(stream) == [""]
        model.deliver[1](0, None, FINAL)
        assert streamed(stream) == (1, 0, True, None)
        model.deliver[0](1, answer(5), FINAL)
        assert streamed(stream) == (0, 2, True, [5])
        model.deliver[0](0, BackendFailure(3, "no"), FINAL)
        assert streamed(stream) == (0, 0, True, "no")


def test_a_reply_tells_how_long_its_encoding_took() -> None:
    model = PuppetModel()
    with serving(model, step_ns=7) as stream:
        stream.deliver(batch(ONE))
        assert ended(stream) == [""]
        model.deliver[0](0, answer(1), MORE)
        model.deliver[0](0, None, FINAL)
        taken = [received(stream).streamed[0].compute_output_ns for _ in range(2)]
        assert taken == [7, 0]  # the clock goes on by 7 at each look


def test_after_the_final_one_nothing_is_sent() -> None:
    model = PuppetModel()
    with serving(model) as stream:
        stream.deliver(batch(ONE))
        assert ended(stream) == [""]
        model.deliver[0](0, answer(1), FINAL)
        model.deliver[0](0, answer(2), FINAL)
        assert streamed(stream) == (0, 0, True, [1])
    assert list(stream.sent.queue) == [wire.FAREWELL]


def test_what_fails_in_execution_is_told_with_its_end_and_only_if_open() -> None:
    model = PuppetModel()
    model.during = lambda deliver: deliver(0, None, FINAL)
    model.outcome = BackendError("broken")
    with serving(model) as stream:
        stream.deliver(batch(ONE, ONE))
        assert streamed(stream) == (0, 0, True, None)
        assert ended(stream) == ["", "broken"]
        model.deliver[0](1, answer(1), FINAL)
    assert list(stream.sent.queue) == [wire.FAREWELL]


@pytest.mark.parametrize("count", [1, 3])
def test_a_wrong_number_of_outcomes_fails_all_and_names_both(count: int) -> None:
    model = PuppetModel()
    model.outcome = [None] * count
    with serving(model) as stream:
        stream.deliver(batch(ONE, ONE))
        text = f"2 requests were begun with {count} outcomes"
        assert ended(stream) == [text, text]
    assert list(stream.sent.queue) == [wire.FAREWELL]


def test_a_router_cancels_requests_by_batch_and_place() -> None:
    model = PuppetModel()
    with serving(model) as stream:
        stream.deliver(batch(BAD, ONE))
        ended(stream)
        cancelled = worker_pb2.BatchRequest()
        cancelled.cancelled.add(batch=0, request=1)
        cancelled.cancelled.add(batch=7, request=0)
        stream.deliver(cancelled.SerializeToString())
        stream.deliver(batch(ONE))
        assert ended(stream) == [""]
        assert model.cancelled == [(0, 0)]
        model.deliver[1](0, None, FINAL)
        assert streamed(stream) == (1, 0, True, None)
        model.deliver[0](0, None, FINAL)
        assert streamed(stream) == (0, 1, True, None)


@contextmanager
def held(model: PuppetModel) -> Iterator[threading.Event]:
    """Have the model's executions begin, and then last as long as this does."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: Deliver) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)

    model.during = hold
    yield begun
    go_on.set()


def cancellation(batch: int, request: int) -> bytes:
    place = worker_pb2.RequestPlace(batch=batch, request=request)
    return worker_pb2.BatchRequest(cancelled=[place]).SerializeToString()


def test_a_request_may_be_cancelled_while_it_is_executed() -> None:
    model = PuppetModel()
    with serving(model) as stream:
        with held(model) as begun:
            stream.deliver(batch(ONE, ONE))
            assert begun.wait(WAIT_S)
            stream.deliver(cancellation(0, 1))
            eventually(lambda: model.cancelled == [(0, 1)])
        assert ended(stream) == ["", ""]
        for call in (0, 1):
            model.deliver[0](call, None, FINAL)
            assert streamed(stream) == (0, call, True, None)


def test_a_request_may_be_cancelled_before_its_batch_is_begun() -> None:
    model = PuppetModel()
    with serving(model) as stream:
        with held(model) as begun:
            stream.deliver(batch(ONE))
            assert begun.wait(WAIT_S)
            stream.deliver(batch(ONE, ONE))
            stream.deliver(cancellation(1, 1))
            stream.deliver(cancellation(0, 0))
            # What is said of the batch that is executed comes last, so all is heard.
            eventually(lambda: model.cancelled == [(0, 0)])
        assert ended(stream) == [""]
        assert ended(stream) == ["", ""]
        assert model.cancelled == [(0, 0), (1, 1)]
        for number, call in ((0, 0), (1, 0), (1, 1)):
            model.deliver[number](call, None, FINAL)
            assert streamed(stream) == (number, call, True, None)


def notice(**places: tuple[int, int]) -> bytes:
    message = worker_pb2.BatchRequest()
    for field, (number, place) in places.items():
        getattr(message, field).add(batch=number, request=place)
    return message.SerializeToString()


@contextmanager
def in_background(action: Callable[[], None]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    yield thread
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("end", ["resumed", "cancelled"])
def test_an_answer_waits_while_its_reader_is_slow(end: str) -> None:
    model = PuppetModel()
    with serving(model) as stream:
        stream.deliver(batch(ONE, ONE))
        assert ended(stream) == ["", ""]
        stream.deliver(notice(paused=(0, 1)))
        # One that is not known shows that the pause has been heard.
        stream.deliver(notice(cancelled=(0, 0)))
        eventually(lambda: model.cancelled == [(0, 0)])
        with in_background(lambda: model.deliver[0](1, answer(7), MORE)) as waiting:
            model.deliver[0](0, answer(1), FINAL)
            assert streamed(stream) == (0, 0, True, [1])
            assert waiting.is_alive()
            stream.deliver(notice(**{end: (0, 1)}))
            assert streamed(stream) == (0, 1, False, [7])
        model.deliver[0](1, None, FINAL)
        assert streamed(stream) == (0, 1, True, None)


def test_the_last_answer_waits_for_nobody() -> None:
    model = PuppetModel()
    with serving(model) as stream:
        stream.deliver(batch(ONE, ONE))
        assert ended(stream) == ["", ""]
        stream.deliver(notice(paused=(0, 1)))
        stream.deliver(notice(cancelled=(0, 0)))
        eventually(lambda: model.cancelled == [(0, 0)])
        model.deliver[0](1, None, FINAL)
        assert streamed(stream) == (0, 1, True, None)
        model.deliver[0](0, None, FINAL)


class PacedModel(PuppetModel):
    """Makes those wait itself who answer."""

    def __init__(self) -> None:
        super().__init__()
        self.paces: queue.Queue[tuple[int, bool]] = queue.Queue()

    def execute_paced(
        self,
        calls: Sequence[BackendCall],
        deliver: Deliver,
        cancel_with: Callable[[Callable[[int], None]], None],
        pace_with: Callable[[Pace], None],
    ) -> Sequence[BackendFailure | None]:
        pace_with(lambda call, is_slow: self.paces.put((call, is_slow)))
        return self.execute_decoupled(calls, deliver, cancel_with)


def test_a_model_that_makes_others_wait_is_told_and_never_waits() -> None:
    model = PacedModel()
    with serving(model) as stream:
        stream.deliver(batch(BAD, ONE))
        ended(stream)
        stream.deliver(notice(paused=(0, 1)))
        assert model.paces.get(timeout=WAIT_S) == (0, True)
        model.deliver[0](0, answer(1), MORE)
        assert streamed(stream) == (0, 1, False, [1])
        stream.deliver(notice(resumed=(0, 1)))
        assert model.paces.get(timeout=WAIT_S) == (0, False)
        model.deliver[0](0, None, FINAL)


def test_a_model_is_paused_too_while_its_stream_is_slow() -> None:
    model = PacedModel()
    large = answer(*range(MOST_BYTES // 4))
    with serving(model) as stream:
        stream.deliver(batch(ONE))
        ended(stream)
        model.deliver[0](0, large, MORE)
        assert model.paces.get(timeout=WAIT_S) == (0, True)
        stream.on_its_way.get(timeout=WAIT_S)()
        assert model.paces.get(timeout=WAIT_S) == (0, False)
        model.deliver[0](0, None, FINAL)


def test_a_lost_router_ends_the_waiting_inside_execute() -> None:
    model = PuppetModel()
    heard = threading.Event()

    def answer_when_heard(deliver: Deliver) -> None:
        assert heard.wait(WAIT_S)
        deliver(0, answer(1), MORE)

    model.during = answer_when_heard
    execution = StreamedExecution(SIGNATURE, model, ManualClock())
    routers = PuppetRouters()
    instance = Instance("m_0", StreamedRun(execution.run), routers.open)
    instance.connect(["r"])
    lost = routers.accept()
    lost.deliver(batch(ONE, ONE))
    lost.deliver(notice(paused=(0, 0)))
    lost.deliver(notice(cancelled=(0, 1)))
    eventually(lambda: model.cancelled == [(0, 1)])
    heard.set()
    lost.end()
    again = routers.accept()
    assert model.cancelled == [(0, 1), (0, 0)]
    instance.connect([])
    assert again.finished.wait(WAIT_S)
    again.end()
    instance.stop()


def test_what_a_lost_router_waited_for_is_cancelled_and_goes_nowhere() -> None:
    model = PuppetModel()
    execution = StreamedExecution(SIGNATURE, model, ManualClock())
    routers = PuppetRouters()
    instance = Instance("m_0", StreamedRun(execution.run), routers.open)
    instance.connect(["r"])
    lost = routers.accept()
    lost.deliver(batch(ONE, ONE))
    ended(lost)
    lost.end()
    again = routers.accept()
    assert model.cancelled == [(0, 0), (0, 1)]
    model.deliver[0](0, answer(1), FINAL)
    assert lost.sent.empty()
    assert again.sent.empty()
    instance.connect([])
    assert again.finished.wait(WAIT_S)
    again.end()
    instance.stop()
