"""Instances and their streams, with routers that are puppets."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from protos import worker_pb2
from services.worker import router_link, wire
from services.worker.instance import Instance
from services.worker.runs import StatefulRun
from services.worker.sequence_states import SequenceStates, State
from tests.unit.worker.puppets import WAIT_S, PuppetRouters, PuppetStream


def shout(message: bytes) -> bytes:
    return message.upper()


class Held:
    """An execution that says when it begins and ends when it is told."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, message: bytes) -> bytes:
        self.begun.set()
        assert self.go_on.wait(WAIT_S)
        return shout(message)


@contextmanager
def in_background(action: Callable[[], None]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=action)
    thread.start()
    yield thread
    thread.join(WAIT_S)
    assert not thread.is_alive()


def leave(instance: Instance, *streams: PuppetStream) -> None:
    """Stop an idle instance as good routers let it."""
    with in_background(instance.stop):
        for stream in streams:
            assert stream.finished.wait(WAIT_S)
            stream.end()


def test_batches_are_answered_in_order() -> None:
    routers = PuppetRouters()
    instance = Instance("m_0", shout, routers.open)
    instance.connect(["r1"])
    stream = routers.accept()
    stream.deliver(b"a")
    stream.deliver(b"b")
    assert [stream.sent.get(timeout=WAIT_S) for _ in "ab"] == [b"A", b"B"]
    leave(instance, stream)
    assert stream.closed.is_set()


def test_every_router_gets_a_stream_and_is_told_apart() -> None:
    routers = PuppetRouters()
    instance = Instance("m_0", shout, routers.open)
    instance.connect(["r1", "r2"])
    instance.connect(["r2", "r1"])
    streams = {s.endpoint: s for s in (routers.accept(), routers.accept())}
    assert set(streams) == {"r1", "r2"}
    streams["r2"].deliver(b"to two")
    assert streams["r2"].sent.get(timeout=WAIT_S) == b"TO TWO"
    assert streams["r1"].sent.empty()
    leave(instance, *streams.values())


def test_one_instance_executes_one_batch_at_a_time() -> None:
    meeting = threading.Barrier(2)
    overlaps = []

    def meet(message: bytes) -> bytes:
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.05)
            overlaps.append(message)
        return shout(message)

    routers = PuppetRouters()
    instance = Instance("m_0", meet, routers.open)
    instance.connect(["r1", "r2"])
    first, second = routers.accept(), routers.accept()
    first.deliver(b"a")
    second.deliver(b"b")
    assert first.sent.get(timeout=WAIT_S) == b"A"
    assert second.sent.get(timeout=WAIT_S) == b"B"
    assert overlaps == []
    leave(instance, first, second)


def test_two_instances_overlap_in_time() -> None:
    meeting = threading.Barrier(2)

    def meet(message: bytes) -> bytes:
        meeting.wait(WAIT_S)  # raises unless the other is inside, too
        return shout(message)

    routers = PuppetRouters()
    instances = [Instance(f"m_{n}", meet, routers.open) for n in range(2)]
    for instance in instances:
        instance.connect(["r1"])
    streams = [routers.accept(), routers.accept()]
    for stream in streams:
        stream.deliver(b"a")
    for stream in streams:
        assert stream.sent.get(timeout=WAIT_S) == b"A"
    with in_background(instances[0].stop), in_background(instances[1].stop):
        for stream in streams:
            assert stream.finished.wait(WAIT_S)
            stream.end()


def test_a_broken_stream_is_dialled_again() -> None:
    routers = PuppetRouters()
    instance = Instance("m_0", shout, routers.open)
    instance.connect(["r1"])
    first = routers.accept()
    first.end()
    second = routers.accept()
    assert first.closed.is_set()
    second.deliver(b"a")
    assert second.sent.get(timeout=WAIT_S) == b"A"
    leave(instance, second)


def test_a_batch_that_raises_costs_the_stream_not_the_instance() -> None:
    def fail_once(message: bytes) -> bytes:
        if message == b"bad":
            raise ValueError(message)
        return shout(message)

    routers = PuppetRouters()
    instance = Instance("m_0", fail_once, routers.open)
    instance.connect(["r1"])
    first = routers.accept()
    first.deliver(b"bad")
    second = routers.accept()
    assert first.cancelled.is_set()
    assert first.sent.empty()
    second.deliver(b"good")
    assert second.sent.get(timeout=WAIT_S) == b"GOOD"
    leave(instance, second)


def test_stopping_waits_for_the_answer_that_is_being_made() -> None:
    routers, held = PuppetRouters(), Held()
    instance = Instance("m_0", held, routers.open)
    instance.connect(["r1"])
    stream = routers.accept()
    stream.deliver(b"a")
    assert held.begun.wait(WAIT_S)
    with in_background(instance.stop) as stopping:
        assert not stream.finished.is_set()
        held.go_on.set()
        assert stream.sent.get(timeout=WAIT_S) == b"A"
        assert stream.sent.get(timeout=WAIT_S) == wire.FAREWELL
        assert stream.finished.wait(WAIT_S)
        assert stopping.is_alive()
        stream.end()


def test_a_batch_that_crosses_the_farewell_is_left_to_the_router() -> None:
    routers = PuppetRouters()
    executed: list[bytes] = []

    def remember(message: bytes) -> bytes:
        executed.append(message)
        return shout(message)

    instance = Instance("m_0", remember, routers.open)
    instance.connect(["r1"])
    stream = routers.accept()
    with in_background(instance.stop):
        assert stream.finished.wait(WAIT_S)
        stream.deliver(b"late")
        stream.end()
    assert executed == []
    assert stream.sent.get_nowait() == wire.FAREWELL


def test_a_router_that_does_not_say_goodbye_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router_link, "_FAREWELL_S", 0.02)
    routers = PuppetRouters()
    instance = Instance("m_0", shout, routers.open)
    instance.connect(["r1"])
    stream = routers.accept()
    instance.stop()
    assert stream.finished.is_set()
    assert stream.cancelled.is_set()


def test_a_router_that_is_no_longer_named_is_left() -> None:
    routers = PuppetRouters()
    instance = Instance("m_0", shout, routers.open)
    instance.connect(["r1", "r2"])
    streams = {s.endpoint: s for s in (routers.accept(), routers.accept())}
    instance.connect(["r2"])
    assert streams["r1"].finished.wait(WAIT_S)
    streams["r1"].end()
    assert streams["r1"].closed.wait(WAIT_S)
    streams["r2"].deliver(b"a")
    assert streams["r2"].sent.get(timeout=WAIT_S) == b"A"
    leave(instance, streams["r2"])


def test_a_stopped_instance_dials_nobody() -> None:
    routers = PuppetRouters()
    instance = Instance("m_0", shout, routers.open)
    instance.stop()
    instance.connect(["r1"])
    assert not [t for t in threading.enumerate() if t.name.startswith("m_0@")]


def test_each_stream_has_states_of_its_own_until_it_ends_or_says_so() -> None:
    seen: dict[bytes, list[int]] = {}

    def remember(message: bytes, states: SequenceStates) -> bytes:
        seen[message] = sorted(states.numbers())
        states.keep(message[0], (State((1,), message),))
        return message

    routers = PuppetRouters()
    instance = Instance("m_0", StatefulRun(remember), routers.open)
    instance.connect(["r1", "r2"])
    streams = {s.endpoint: s for s in (routers.accept(), routers.accept())}
    first, second = streams["r1"], streams["r2"]
    restored = worker_pb2.SequenceStates(
        sequence=7, state=[worker_pb2.SequenceState(shape=[1], data=b"x")]
    )
    for message in (
        b"a",
        b"b",
        worker_pb2.BatchRequest(ended_sequence=[ord("a")]).SerializeToString(),
        worker_pb2.BatchRequest(restored=[restored]).SerializeToString(),
        b"c",
    ):
        first.deliver(message)
    second.deliver(b"d")
    for stream in (first, first, first, second):
        stream.sent.get(timeout=WAIT_S)
    assert seen == {b"a": [], b"b": [97], b"c": [7, 98], b"d": []}
    first.end()
    again = routers.accept()
    again.deliver(b"e")
    assert again.sent.get(timeout=WAIT_S) == b"e"
    assert seen[b"e"] == []
    leave(instance, again, second)


def test_a_model_that_forgets_costs_every_stream_and_the_answer_being_made() -> None:
    routers, held = PuppetRouters(), Held()
    executed: list[bytes] = []

    def remember(message: bytes) -> bytes:
        executed.append(message)
        return held(message)

    instance = Instance("m_0", remember, routers.open)
    instance.connect(["r1", "r2"])
    streams = {s.endpoint: s for s in (routers.accept(), routers.accept())}
    streams["r1"].deliver(b"a")
    assert held.begun.wait(WAIT_S)
    # What has come and is not begun is the router's again.
    streams["r1"].deliver(b"late")
    instance.forget()
    assert all(stream.cancelled.is_set() for stream in streams.values())
    held.go_on.set()
    again = {s.endpoint: s for s in (routers.accept(), routers.accept())}
    assert streams["r1"].sent.empty()
    again["r1"].deliver(b"b")
    assert again["r1"].sent.get(timeout=WAIT_S) == b"B"
    assert executed == [b"a", b"b"]
    leave(instance, *again.values())


def test_the_states_that_an_execution_changes_are_told_before_its_answer() -> None:
    def remember(message: bytes, states: SequenceStates) -> bytes:
        states.keep(message[0], (State((1,), message),))
        return message

    routers = PuppetRouters()
    instance = Instance("m_0", StatefulRun(remember, tells_states=True), routers.open)
    instance.connect(["r1"])
    stream = routers.accept()
    restored = worker_pb2.SequenceStates(
        sequence=7, state=[worker_pb2.SequenceState(shape=[1], data=b"x")]
    )
    notice = worker_pb2.BatchRequest(restored=[restored])
    stream.deliver(notice.SerializeToString())
    stream.deliver(b"a")
    told = worker_pb2.BatchResponse.FromString(stream.sent.get(timeout=WAIT_S))
    assert [(one.sequence, one.state[0].data) for one in told.states] == [(97, b"a")]
    assert stream.sent.get(timeout=WAIT_S) == b"a"
    leave(instance, stream)
