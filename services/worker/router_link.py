"""An instance's stream to one router, kept open: batches come, answers go."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeAlias

import structlog

from services.core.backlog import Pace
from services.core.memory_return import trim_after
from services.worker import wire
from services.worker.backoff import Backoff
from services.worker.hearing import Hearing
from services.worker.outlet import Outlet
from services.worker.outlets import Outlets
from services.worker.router_stream import OpenStream, Stream
from services.worker.sequence_states import SequenceStates
from services.worker.stream_backlog import StreamBacklog
from services.worker.turns import Claim, InstanceTurns
from services.worker.wire import Notice

# How long a router may take to end a stream that we have finished.
_FAREWELL_S: Final = 1.0
# How long an execution may take to end after the instance was told to stop.
_DRAIN_S: Final = 30.0

_log = structlog.get_logger(__name__)


Execute: TypeAlias = Callable[[bytes, Callable[[], Outlet], SequenceStates], bytes]


class Executor(Protocol):
    """Who executes what comes; an Instance is one.

    Attributes:
        name: As Triton names it.
        turns: When it may execute; None: whenever there is a batch.
        tells_states: Whether the router is sent states before the answers.
        streams: Whether replies go through outlets, and their requests may be
            cancelled while they are executed.
    """

    name: str
    turns: InstanceTurns | None
    tells_states: bool
    streams: bool

    def execute(
        self,
        message: bytes,
        open_outlet: Callable[[], Outlet],
        states: SequenceStates,
    ) -> bytes:
        """Answer one batch, waiting for the batches of other routers."""
        ...


class RouterLink:
    """The stream to one router, dialled again whenever it breaks."""

    def __init__(
        self, instance: Executor, endpoint: str, open_stream: OpenStream
    ) -> None:
        """Dial, and keep dialling, in a thread of its own.

        Args:
            instance: Executes what comes.
            endpoint: Of the router.
            open_stream: Dials it.
        """
        self._instance = instance
        self._endpoint = endpoint
        self._open_stream = open_stream
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._stream: Stream | None = None
        self._backlog: StreamBacklog | None = None
        self._busy = False
        self._outlets = Outlets()
        self._drained = threading.Condition(self._lock)
        self._thread = threading.Thread(
            target=self._serve, name=f"{instance.name}@{endpoint}", daemon=True
        )
        self._thread.start()

    def leave(self) -> None:
        """Finish the stream, now or behind the answer that is being made."""
        with self._lock:
            self._stopping.set()
            if self._stream is not None and self._is_idle:
                self._say_farewell(self._stream)

    def cut(self) -> None:
        """End the stream at once; it is dialled anew."""
        with self._lock:
            stream, self._stream = self._stream, None
            if stream is not None:
                stream.cancel()

    def wait(self) -> None:
        """Return when the thread has ended; after ``leave``."""
        with self._lock:
            self._drained.wait_for(lambda: self._is_idle, _DRAIN_S)
        self._thread.join(_FAREWELL_S)
        with self._lock:
            if self._stream is not None:
                self._stream.cancel()
        self._thread.join(_FAREWELL_S)
        if self._thread.is_alive():
            _log.error("an execution does not end", instance=self._instance.name)

    def _serve(self) -> None:
        backoff = Backoff()
        while (stream := self._dial()) is not None:
            try:
                self._answer(stream, backoff)
            except Exception:  # noqa: BLE001 - logged; the stream is dialled anew
                _log.exception(
                    "a batch could not be answered",
                    instance=self._instance.name,
                    router=self._endpoint,
                )
                stream.cancel()
                while stream.receive() is not None:
                    continue
            with self._lock:
                self._stream = None
                self._busy = False
                lost, self._outlets = self._outlets, Outlets()
                self._drained.notify_all()
            stream.close()
            lost.cancel_all()
            _log.debug(
                "a stream to a router has ended",
                instance=self._instance.name,
                router=self._endpoint,
                status=stream.status,
            )
            self._stopping.wait(backoff.after_failure())

    def _dial(self) -> Stream | None:
        """Open the stream; None once we leave."""
        with self._lock:
            if self._stopping.is_set():
                return None
            self._stream = self._open_stream(self._endpoint)
            self._backlog = StreamBacklog(self._stream)
            return self._stream

    def _answer(self, stream: Stream, backoff: Backoff) -> None:
        """Answer batches until the stream ends."""
        turns = self._instance.turns
        if turns is not None:
            self._answer_in_turn(stream, turns, backoff)
        elif self._instance.streams:
            execute = self._instance.execute
            heed = partial(self._heed, stream)
            self._answer_hearing(stream, heed, execute, backoff)
        else:
            execute, receive = self._instance.execute, stream.receive
            self._answer_batches(stream, receive, execute, backoff)

    def _answer_in_turn(
        self, stream: Stream, turns: InstanceTurns, backoff: Backoff
    ) -> None:
        """Answer batches by turns."""
        claim = turns.claim(partial(self._give_turn, stream))
        heed = partial(self._heed_turns, stream, turns, claim)
        execute = partial(self._execute_in_turn, turns, claim)
        try:
            self._answer_hearing(stream, heed, execute, backoff)
        finally:
            turns.leave(claim)

    def _answer_hearing(
        self,
        stream: Stream,
        heed: Callable[[bytes], bool],
        execute: Execute,
        backoff: Backoff,
    ) -> None:
        """Answer batches; what is said while one is executed is heeded at once."""
        name = f"{self._instance.name}@{self._endpoint} hearing"
        receive = partial(self._receive, stream)
        hearing = Hearing(name, receive, heed)
        try:
            self._answer_batches(stream, hearing.next, execute, backoff)
        except Exception:
            stream.cancel()
            raise
        finally:
            hearing.join()

    def _receive(self, stream: Stream) -> bytes | None:
        """Receive; tell at once, when the stream has ended, that nobody waits."""
        message = stream.receive()
        if message is None:
            with self._lock:
                if self._stream is stream:
                    self._stream = None
            self._outlets.cancel_all()
        return message

    def _heed(self, stream: Stream, message: bytes) -> bool:
        """Tell the model at once what concerns requests that it is answering."""
        if not wire.is_of_requests(message):
            return False
        self._tell(stream, wire.parse_notice(message))
        return True

    def _heed_turns(
        self, stream: Stream, turns: InstanceTurns, claim: Claim, message: bytes
    ) -> bool:
        """Do the same, and ask for turns and pass them."""
        if message == wire.ASKS_TURN:
            turns.ask(claim)
        elif message == wire.PASSES_TURN:
            turns.end(claim, is_executed=False)
        else:
            return self._heed(stream, message)
        return True

    def _answer_batches(
        self,
        stream: Stream,
        receive: Callable[[], bytes | None],
        execute: Execute,
        backoff: Backoff,
    ) -> None:
        number = 0
        states = SequenceStates()
        while (message := receive()) is not None:
            trim_after(message)
            backoff.reset()
            if wire.is_notice(message):
                self._take(stream, wire.parse_notice(message), states)
                continue
            with self._lock:
                if self._stopping.is_set() or self._stream is not stream:
                    continue  # it crossed our farewell: the router keeps it
                self._busy = True
            open_outlet = partial(self._open_outlet, stream, number)
            answer = execute(message, open_outlet, states)
            number += 1
            with self._lock:
                self._busy = False
                if self._stream is stream:
                    if self._instance.tells_states:
                        self._tell_states(stream, states)
                    stream.send(answer)
                self._finish_if_drained()
            # They may be huge, and the next batch may be long in coming.
            message = answer = b""

    @property
    def _is_idle(self) -> bool:
        return not self._busy and not self._outlets

    def _finish_if_drained(self) -> None:
        """Say farewell behind the last answer, if we leave; with the lock held."""
        if self._is_idle:
            self._drained.notify_all()
            if self._stopping.is_set() and self._stream is not None:
                self._say_farewell(self._stream)

    @staticmethod
    def _say_farewell(stream: Stream) -> None:
        """Tell the router that nothing which may still come is begun."""
        stream.send(wire.FAREWELL)
        stream.finish()

    def _make_outlet(self, stream: Stream, number: int) -> Outlet:
        return Outlet(
            number,
            send=partial(self._send, stream),
            close=partial(self._close_outlet, stream, number),
        )

    def _open_outlet(self, stream: Stream, number: int) -> Outlet:
        with self._lock:
            return self._outlets.open(number, partial(self._make_outlet, stream))

    def _send(self, stream: Stream, message: bytes, pace: Pace) -> None:
        with self._lock:
            if self._stream is stream and self._backlog is not None:
                self._backlog.send(message, pace)

    def _close_outlet(self, stream: Stream, number: int) -> None:
        with self._lock:
            if self._stream is stream:
                self._outlets.close(number)
                if not self._busy:
                    self._finish_if_drained()

    def _execute_in_turn(
        self,
        turns: InstanceTurns,
        claim: Claim,
        message: bytes,
        open_outlet: Callable[[], Outlet],
        states: SequenceStates,
    ) -> bytes:
        """Execute a batch, with or without having asked for a turn before."""
        turns.take(claim)
        try:
            return self._instance.execute(message, open_outlet, states)
        finally:
            turns.end(claim)

    def _give_turn(self, stream: Stream) -> None:
        """Let the router send a batch, unless we have begun to leave."""
        with self._lock:
            if self._stream is stream and not self._stopping.is_set():
                stream.send(wire.TURN)

    @staticmethod
    def _tell_states(stream: Stream, states: SequenceStates) -> None:
        changed = states.take_changed()
        if changed:
            stream.send(wire.states_message(changed))

    def _take(self, stream: Stream, notice: Notice, states: SequenceStates) -> None:
        """Heed a message that is no batch."""
        states.end(notice.ended_sequences)
        for number, restored in notice.restored:
            states.restore(number, restored)
        self._tell(stream, notice)

    def _tell(self, stream: Stream, notice: Notice) -> None:
        """Pass on what is said of requests: nobody waits, or a reader is slow."""
        for places, tell in (
            (notice.cancelled, Outlet.cancel),
            (notice.paused, Outlet.pause),
            (notice.resumed, Outlet.resume),
        ):
            for batch, request in places:
                with self._lock:
                    outlet = self._outlets.of(batch, partial(self._make_outlet, stream))
                if outlet is not None:
                    tell(outlet, request)
