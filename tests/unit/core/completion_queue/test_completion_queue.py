"""The private layer under grpcio, as far as we lean on it.

An upgrade of grpcio that changes it fails here, before it fails a client.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from services.core.completion_queue import (
    CallFactory,
    ClientStream,
    NativeCall,
    NativeMetadata,
    Reactor,
    Server,
    StreamCall,
    UnaryCall,
    metadata_values,
)

ECHO, HOT_ECHO, HOLD = "/t.T/Echo", "/t.T/Hot", "/t.T/Hold"
STREAM, SLOW_STREAM = "/t.T/Stream", "/t.T/SlowStream"
FAULTY, FAULTY_STREAM = "/t.T/Faulty", "/t.T/FaultyStream"


class Echo(UnaryCall):
    __slots__ = ()

    def received(self, message: bytes) -> None:
        if message == b"fail":
            self.fail(3, "told to fail")
        if message == b"fail at length":
            self.fail(3, "why " * 30_000)
        values = metadata_values(self.metadata)
        self.answer(message * 2, (("seen", values.get("say", "")),))
        self.answer(b"a second answer is dropped")


class Hold(UnaryCall):
    """Waits for its client to leave."""

    __slots__ = ()
    arrived: SimpleQueue["Hold"] = SimpleQueue()
    left: SimpleQueue["Hold"] = SimpleQueue()

    def received(self, message: bytes) -> None:
        del message
        Hold.arrived.put(self)

    def cancelled(self) -> None:
        Hold.left.put(self)


class Talk(StreamCall):
    """Answers every message with two, and the end with a status."""

    __slots__ = ()

    def __init__(self, call: NativeCall, method: str, metadata: NativeMetadata) -> None:
        super().__init__(call, method, metadata)
        self.read()

    def received(self, message: bytes) -> None:
        self.send(message + b"!")
        self.send(message + b"?")
        self.read()

    def half_closed(self) -> None:
        self.finish(5, "that was all" + " \u00e9" * 30_000)


class SlowTalk(Talk):
    """Has more to say when its client has said everything."""

    __slots__ = ()
    left: SimpleQueue["Talk"] = SimpleQueue()

    def received(self, message: bytes) -> None:
        del message
        self.send(b"held")
        self.read()

    def half_closed(self) -> None:
        """Go on."""

    def cancelled(self) -> None:
        SlowTalk.left.put(self)


class Faulty(UnaryCall):
    """Has a fault of its own."""

    __slots__ = ()

    def received(self, message: bytes) -> None:
        raise ValueError(message)


class FaultyTalk(Talk):
    """Has a fault in its ``received``, or else in its ``half_closed``."""

    __slots__ = ()
    left: SimpleQueue["Talk"] = SimpleQueue()

    def received(self, message: bytes) -> None:
        if message == b"now":
            raise ValueError(message)
        self.read()

    def half_closed(self) -> None:
        raise ValueError

    def cancelled(self) -> None:
        FaultyTalk.left.put(self)


METHODS: Mapping[str, CallFactory] = {
    ECHO: Echo,
    FAULTY: Faulty,
    FAULTY_STREAM: FaultyTalk,
    HOLD: Hold,
    STREAM: Talk,
    SLOW_STREAM: SlowTalk,
}


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    reactor = Reactor()
    thread = threading.Thread(target=reactor.run)
    thread.start()
    yield reactor
    reactor.call_soon_threadsafe(reactor.stop)
    thread.join(timeout=5)
    assert not thread.is_alive()


@pytest.fixture
def target(reactor: Reactor) -> Iterator[str]:
    server = Server(reactor)
    server.add_hot_method(HOT_ECHO, Echo)
    for method, factory in METHODS.items():
        server.add_method(method, factory)
    port = server.listen("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    down = threading.Event()

    def shutdown() -> None:
        server.shutdown(down.set)
        server.cancel_all_calls()

    reactor.call_soon_threadsafe(shutdown)
    assert down.wait(30)


@contextmanager
def stream_to(target: str) -> Iterator[ClientStream]:
    with closing(ClientStream(target, STREAM)) as stream:
        yield stream
        stream.cancel()


def channel_to(target: str, **options: Any) -> Any:  # noqa: ANN401 - grpc is untyped
    return grpc.insecure_channel(target, **options)


def unary(target: str, method: str) -> Callable[..., bytes]:
    call: Callable[..., bytes] = channel_to(target).unary_unary(method)
    return call


@pytest.mark.parametrize("method", [ECHO, HOT_ECHO])
def test_a_unary_call_gets_its_answer_and_its_metadata(
    target: str, method: str
) -> None:
    with channel_to(target) as channel:
        answer, call = channel.unary_unary(method).with_call(
            b"hi", metadata=(("say", "hello"),), timeout=5
        )
        assert answer == b"hihi"
        assert ("seen", "hello") in tuple(call.initial_metadata())


@pytest.mark.parametrize("method", [ECHO, HOT_ECHO])
def test_a_unary_call_gets_its_error(target: str, method: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        unary(target, method)(b"fail", timeout=5)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "told to fail"


def test_an_error_with_a_long_text_keeps_its_status(target: str) -> None:
    call = unary(target, ECHO)
    for _ in range(20):  # above a soft limit a client refuses by chance
        with pytest.raises(grpc.RpcError) as caught:
            call(b"fail at length", timeout=5)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(caught.value.details()).startswith("why why why")


def test_more_calls_than_were_posted_are_all_answered(target: str) -> None:
    with channel_to(target) as channel:
        call = channel.unary_unary(HOT_ECHO)
        futures = [call.future(b"%d" % i, timeout=20) for i in range(500)]
        assert [f.result() for f in futures] == [b"%d" % i * 2 for i in range(500)]


def test_a_large_message_passes_both_ways(target: str) -> None:
    options = (("grpc.max_receive_message_length", -1),)
    with channel_to(target, options=options) as channel:
        message = bytes(6 << 20)
        assert channel.unary_unary(ECHO)(message, timeout=20) == message * 2


def test_an_unknown_method_is_unimplemented(target: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        unary(target, "/t.T/Nope")(b"", timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_fault_of_ours_is_an_internal_error_and_not_a_client_left_waiting(
    target: str,
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        unary(target, FAULTY)(b"", timeout=5)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details() == "internal error"


@pytest.mark.parametrize("message", [b"now", b"at the end"])
def test_a_fault_of_ours_ends_a_stream_and_what_it_had_begun(
    target: str, message: bytes
) -> None:
    with channel_to(target) as channel, pytest.raises(grpc.RpcError) as caught:
        next(channel.stream_stream(FAULTY_STREAM)(iter((message,)), timeout=5))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert isinstance(FaultyTalk.left.get(timeout=5), FaultyTalk)


def test_headers_as_long_as_the_gateway_lets_pass_are_never_refused(
    target: str,
) -> None:
    with channel_to(target) as channel:
        call = channel.unary_unary(ECHO)
        for _ in range(20):  # above a soft limit C-core refuses by chance
            long = (("cookie", "x" * 60_000),)
            assert call(b"a", metadata=long, timeout=5) == b"aa"


def test_a_client_that_cancels_is_noticed_while_it_is_being_served(target: str) -> None:
    with channel_to(target) as channel:
        future = channel.unary_unary(HOLD).future(b"", timeout=20)
        held = Hold.arrived.get(timeout=5)
        future.cancel()
        assert Hold.left.get(timeout=5) is held
        assert not held.open
        held.answer(b"nobody hears this")


def test_a_deadline_that_passes_is_noticed_as_a_cancellation(target: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        unary(target, HOLD)(b"", timeout=0.05)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert Hold.left.get(timeout=5) is Hold.arrived.get(timeout=5)


def test_a_stream_keeps_the_order_of_messages_and_ends_with_its_status(
    target: str,
) -> None:
    with channel_to(target) as channel:
        answers = channel.stream_stream(STREAM)(iter((b"a", b"b")), timeout=5)
        assert [next(answers) for _ in range(4)] == [b"a!", b"a?", b"b!", b"b?"]
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert str(caught.value.details()).startswith("that was all \u00e9")


def test_the_client_stream_queues_what_it_sends(target: str) -> None:
    with stream_to(target) as stream:
        for index in range(50):
            stream.send(b"%d" % index)
        received = [stream.receive() for _ in range(100)]
    assert received == [b"%d" % i + end for i in range(50) for end in (b"!", b"?")]


def test_a_client_stream_cancelled_from_another_thread_stops_receiving(
    target: str,
) -> None:
    with closing(ClientStream(target, STREAM)) as stream:
        stream.send(b"a")
        assert (stream.receive(), stream.receive()) == (b"a!", b"a?")
        threading.Thread(target=stream.cancel).start()
        assert stream.receive() is None
        assert stream.status is not None
        assert stream.status[0] == grpc.StatusCode.CANCELLED.value[0]


def test_a_stream_still_being_answered_sees_its_client_leave(target: str) -> None:
    with closing(ClientStream(target, SLOW_STREAM)) as stream:
        stream.send(b"a")
        assert stream.receive() == b"held"
        stream.cancel()
    assert isinstance(SlowTalk.left.get(timeout=5), SlowTalk)


def test_a_client_stream_can_be_looked_at_without_waiting(target: str) -> None:
    with stream_to(target) as stream:
        assert stream.arrived() == []
        stream.send(b"a")
        stream.send(b"b")
        seen: list[bytes] = []
        while len(seen) < 4:
            seen += stream.arrived()
        assert seen == [b"a!", b"a?", b"b!", b"b?"]
        assert stream.arrived() == []
        stream.cancel()
        while stream.status is None:
            stream.arrived()
        assert stream.status[0] == grpc.StatusCode.CANCELLED.value[0]
        assert stream.arrived() == []


def test_a_client_stream_to_nobody_ends_as_unavailable(tmp_path: Path) -> None:
    with closing(ClientStream(f"unix:{tmp_path}/nobody", STREAM)) as stream:
        assert stream.receive() is None
        assert stream.status is not None
        assert stream.status[0] == grpc.StatusCode.UNAVAILABLE.value[0]


def test_a_taken_port_is_refused(target: str) -> None:
    with pytest.raises(OSError, match="in use"):
        Server(Reactor()).listen(target)


def test_two_servers_share_one_reactor(reactor: Reactor, tmp_path: Path) -> None:
    targets = [f"unix:{tmp_path}/{name}.sock" for name in "ab"]
    for target, method in zip(targets, ("/t.T/A", "/t.T/B"), strict=True):
        server = Server(reactor)
        server.add_method(method, Echo)
        server.listen(target)
        server.start()
    assert unary(targets[0], "/t.T/A")(b"x", timeout=5) == b"xx"
    with pytest.raises(grpc.RpcError) as caught:
        unary(targets[1], "/t.T/A")(b"x", timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_timers_run_in_order_and_not_before_their_time(reactor: Reactor) -> None:
    ran: SimpleQueue[tuple[str, int]] = SimpleQueue()
    start_ns = time.monotonic_ns()

    def promise(name: str, after_ns: int) -> None:
        def note() -> None:
            ran.put((name, time.monotonic_ns() - start_ns - after_ns))

        reactor.call_at(start_ns + after_ns, note)

    def arrange() -> None:
        promise("late", 4_000_000)
        promise("early", 1_000_000)
        reactor.call_at(start_ns, lambda: ran.put(("never", 0))).cancel()

    reactor.call_soon_threadsafe(arrange)
    first, second = ran.get(timeout=5), ran.get(timeout=5)
    assert (first[0], second[0]) == ("early", "late")
    assert first[1] >= 0
    assert second[1] >= 0
    assert ran.empty()


def test_a_rough_timer_is_not_early_and_costs_no_polling(reactor: Reactor) -> None:
    ran: SimpleQueue[int] = SimpleQueue()
    due_ns = time.monotonic_ns() + 200_000_000

    def promise() -> None:
        reactor.call_roughly_at(due_ns, lambda: ran.put(time.monotonic_ns()))

    reactor.call_soon_threadsafe(promise)
    began_ns = time.process_time_ns()
    late_ns = ran.get(timeout=5) - due_ns
    assert 0 <= late_ns < 100_000_000
    assert time.process_time_ns() - began_ns < 50_000_000


def test_a_cancelled_timer_does_not_hide_the_one_behind_it(reactor: Reactor) -> None:
    ran: SimpleQueue[str] = SimpleQueue()

    def promise() -> None:
        now_ns = time.monotonic_ns()
        reactor.call_at(now_ns + 1_000_000, lambda: ran.put("never")).cancel()
        reactor.call_at(now_ns + 2_000_000, lambda: ran.put("ran"))

    reactor.call_soon_threadsafe(promise)
    assert ran.get(timeout=5) == "ran"


def test_what_was_asked_for_when_drained_runs_once(reactor: Reactor) -> None:
    ran: SimpleQueue[str] = SimpleQueue()

    def note() -> None:
        ran.put("ran")

    def ask() -> None:
        reactor.call_when_drained(note)
        reactor.call_when_drained(note)

    reactor.call_soon_threadsafe(ask)
    assert ran.get(timeout=5) == "ran"
    reactor.call_soon_threadsafe(lambda: ran.put("later"))
    assert ran.get(timeout=5) == "later"


def test_what_a_drained_callback_asks_for_runs_before_the_next_event(
    reactor: Reactor,
) -> None:
    ran: SimpleQueue[str] = SimpleQueue()

    def dispatch() -> None:
        ran.put("dispatched")

    def admit() -> None:
        reactor.call_soon_threadsafe(lambda: ran.put("next event"))
        reactor.call_when_drained(dispatch)

    reactor.call_soon_threadsafe(lambda: reactor.call_when_drained(admit))
    assert ran.get(timeout=5) == "dispatched"
    assert ran.get(timeout=5) == "next event"


def test_an_error_in_one_callback_does_not_stop_the_loop(reactor: Reactor) -> None:
    done = threading.Event()

    def fail() -> None:
        raise RuntimeError("one call's trouble")

    reactor.call_soon_threadsafe(fail)
    reactor.call_soon_threadsafe(done.set)
    assert done.wait(30)


def test_an_error_in_one_drained_callback_does_not_take_the_others_along(
    reactor: Reactor,
) -> None:
    done = threading.Event()

    def fail() -> None:
        raise RuntimeError("one callback's trouble")

    def ask() -> None:
        reactor.call_when_drained(fail)
        reactor.call_when_drained(done.set)

    reactor.call_soon_threadsafe(ask)
    assert done.wait(30)


def test_a_server_that_shuts_down_delivers_what_it_has_answered(
    reactor: Reactor,
) -> None:
    server, down = Server(reactor), threading.Event()
    answer = bytes(50 << 20)

    class AnswerAndStop(UnaryCall):
        __slots__ = ()

        def received(self, message: bytes) -> None:
            del message
            self.answer(answer)
            server.shutdown(down.set)

    server.add_method(ECHO, AnswerAndStop)
    port = server.listen("127.0.0.1:0")
    server.start()
    options = (("grpc.max_receive_message_length", -1),)
    with channel_to(f"127.0.0.1:{port}", options=options) as channel:
        assert channel.unary_unary(ECHO)(b"", timeout=20) == answer
    assert down.wait(30)


def test_a_server_that_shuts_down_hangs_up_on_idle_streams(reactor: Reactor) -> None:
    server, down = Server(reactor), threading.Event()
    server.add_method(STREAM, Talk)
    port = server.listen("127.0.0.1:0")
    server.start()
    with closing(ClientStream(f"127.0.0.1:{port}", STREAM)) as stream:
        stream.send(b"a")
        assert stream.receive() == b"a!"
        reactor.call_soon_threadsafe(lambda: server.shutdown(down.set))
        assert (stream.receive(), stream.receive()) == (b"a?", None)
        assert stream.status == (14, "the server is shutting down")
    assert down.wait(30)
