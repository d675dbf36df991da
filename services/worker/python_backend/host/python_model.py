"""Instances of Python models, as the worker sees them."""

import struct
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog

from services.core.datatype import DataType
from services.core.errors import BackendError
from services.worker.backend import (
    BackendAnswer,
    BackendCall,
    BackendFailure,
    BackendReply,
    Deliver,
    Pace,
    Rescheduled,
)
from services.worker.model_metrics import (
    Families,
    VersionMetrics,
    families_from_json,
)
from services.worker.peers import Peers
from services.worker.python_backend.frames import Frame, Kind
from services.worker.python_backend.host.child import Child, ProcessGoneError
from services.worker.python_backend.host.nested_calls import NestedCalls
from services.worker.python_backend.host.readiness import TIMEOUT_S, Readiness
from services.worker.python_backend.host.supervised_child import (
    StartChild,
    SupervisedChild,
)
from services.worker.python_backend.host.tensor_exchange import (
    TensorExchange,
    streamed_answer,
)
from services.worker.watchdog import HungError

_INTERNAL: Final = 13  # google.rpc.Code
_LEVELS: Final = ("info", "warning", "error", "debug")
_PLACE: Final = struct.Struct("<QI")

_log = structlog.get_logger(__name__)


class PythonModel:
    """One instance that answers each request once; see RequestBackend."""

    def __init__(
        self,
        name: str,
        start: StartChild,
        order: bytes,
        datatypes: Sequence[DataType],
        *,
        peers: Peers,
        metrics: VersionMetrics,
    ) -> None:
        """Start the process and initialize the model.

        Args:
            name: As Triton names it, e.g. "simple_0_0".
            start: See SupervisedChild.
            order: The body of INITIALIZE.
            datatypes: Of the inputs, in the configuration's order.
            peers: The way to other models.
            metrics: Where it shows what it counts itself.

        Raises:
            BackendError: the model cannot be initialized.
        """
        self._conversation = _Conversation(
            name, start, order, datatypes, peers=peers, metrics=metrics
        )

    @property
    def pid(self) -> int:
        """The process's number; 0 while there is none."""
        return self._conversation.child.pid

    def execute_requests(self, calls: Sequence[BackendCall]) -> list[BackendAnswer]:
        """Run one batch; see RequestBackend."""
        missing = BackendFailure(_INTERNAL, "the model did not answer")
        answers = self._conversation.execute(0, calls)
        return [missing if one is None else one for one in answers]

    def is_ready(self) -> bool:
        """Ask the model; see SelfTelling."""
        return self._conversation.is_ready()

    def abandon(self) -> None:
        """End the process; see AbandonableBackend."""
        self._conversation.abandon()

    def when_forgotten(self, callback: Callable[[], None]) -> None:
        """Call back when the process has died; see Forgetting."""
        self._conversation.forgetting.append(callback)

    def unload(self) -> None:
        """Finalize the model and end its process."""
        self._conversation.close()


class DecoupledPythonModel:
    """One instance that answers when it likes; see DecoupledBackend."""

    def __init__(
        self,
        name: str,
        start: StartChild,
        order: bytes,
        datatypes: Sequence[DataType],
        *,
        peers: Peers,
        metrics: VersionMetrics,
    ) -> None:
        """Start the process and initialize the model; as PythonModel does."""
        self._lock = threading.Lock()
        self._batch = 0
        # The calls that are open, by batch and number.
        self._open: dict[tuple[int, int], Deliver] = {}
        self._has_streamed_all = threading.Event()
        self._conversation = _Conversation(
            name,
            start,
            order,
            datatypes,
            peers=peers,
            metrics=metrics,
            on_streamed=self._streamed,
            on_streamed_all=self._has_streamed_all.set,
            on_lost=self._lost,
        )

    @property
    def pid(self) -> int:
        """The process's number; 0 while there is none."""
        return self._conversation.child.pid

    def execute_decoupled(
        self,
        calls: Sequence[BackendCall],
        deliver: Deliver,
        cancel_with: Callable[[Callable[[int], None]], None],
    ) -> list[BackendFailure | Rescheduled | None]:
        """Begin one batch; see DecoupledBackend."""
        return self.execute_paced(calls, deliver, cancel_with, _never_slow)

    def execute_paced(
        self,
        calls: Sequence[BackendCall],
        deliver: Deliver,
        cancel_with: Callable[[Callable[[int], None]], None],
        pace_with: Callable[[Pace], None],
    ) -> list[BackendFailure | Rescheduled | None]:
        """Begin one batch; see PacedBackend."""
        child = self._conversation.child
        batch = self._batch
        self._batch += 1
        with self._lock:
            for call in range(len(calls)):
                self._open[batch, call] = deliver

        def cancel(call: int) -> None:
            child.tell(Kind.CANCEL, _PLACE.pack(batch, call))

        def pace(call: int, is_slow: bool) -> None:  # noqa: FBT001 - a callback
            kind = Kind.PAUSE if is_slow else Kind.RESUME
            child.tell(kind, _PLACE.pack(batch, call))

        self._has_streamed_all.clear()
        try:
            cancel_with(cancel)
            pace_with(pace)
            answers = self._conversation.execute(batch, calls)
        except BaseException:
            self._close(batch, range(len(calls)))
            raise
        ended = [None if isinstance(one, BackendReply) else one for one in answers]
        if Rescheduled() in ended:
            self._has_streamed_all.wait()
        over = [call for call, one in enumerate(ended) if one is not None]
        self._close(batch, over)
        return ended

    def is_ready(self) -> bool:
        """Ask the model; see SelfTelling."""
        return self._conversation.is_ready()

    def abandon(self) -> None:
        """End the process; see AbandonableBackend."""
        self._conversation.abandon()

    def when_forgotten(self, callback: Callable[[], None]) -> None:
        """Call back when the process has died; see Forgetting."""
        self._conversation.forgetting.append(callback)

    def unload(self) -> None:
        """Finalize the model and end its process."""
        self._conversation.close()
        self._lost()

    def _close(self, batch: int, calls: Sequence[int]) -> None:
        with self._lock:
            for call in calls:
                self._open.pop((batch, call), None)

    def _streamed(self, frame: Frame) -> None:
        place, answer, is_final = streamed_answer(frame)
        with self._lock:
            deliver = self._open.get(place)
            if is_final:
                self._open.pop(place, None)
        if deliver is not None:
            deliver(place[1], answer, is_final)

    def _lost(self) -> None:
        """Fail what the process that has ended was still answering."""
        self._has_streamed_all.set()
        with self._lock:
            lost = list(self._open.items())
            self._open.clear()
        for (_, call), deliver in lost:
            failure = BackendFailure(_INTERNAL, self._conversation.child.unhealthy)
            deliver(call, failure, True)  # noqa: FBT003 - final


def _never_slow(_pace: Pace) -> None:
    """Tell of no slow reader."""


class _Conversation:
    """What both kinds of instances have: a process, and memory shared with it."""

    def __init__(
        self,
        name: str,
        start: StartChild,
        order: bytes,
        datatypes: Sequence[DataType],
        *,
        peers: Peers,
        metrics: VersionMetrics,
        on_streamed: Callable[[Frame], None] | None = None,
        on_streamed_all: Callable[[], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self._name = name
        self._exchange = TensorExchange(datatypes)
        self._on_streamed = on_streamed
        self._on_streamed_all = on_streamed_all
        self._on_lost = on_lost
        # Called when the process has died, with all that it knew of sequences.
        self.forgetting: list[Callable[[], None]] = []
        self._is_fresh = True
        self._is_abandoned = False
        self._nested = NestedCalls(peers)
        self._readiness = Readiness()
        self._families: Families = ()
        self._open_metrics = partial(metrics.open, lambda: self._families)
        self._metrics = self._open_metrics()
        try:
            self.child = SupervisedChild(name, start, order, self._event, self._lost)
        except BaseException:
            self._metrics.close()
            raise

    def abandon(self) -> None:
        """End the process, whatever it does."""
        self._is_abandoned = True
        self.child.kill()

    def close(self) -> None:
        """Finalize the model, end its process and forget its metrics."""
        self.child.close()
        self._metrics.close()

    def is_ready(self) -> bool:
        """Return whether the process lives and what the model says, if it does."""
        try:
            child = self.child.healthy(TIMEOUT_S)
        except BackendError:
            return False
        if not self.child.tells_readiness:
            return True

        def send() -> None:
            child.tell(Kind.CHECK_READINESS, b"")
            if child.has_ended:  # and perhaps before there was a question to answer
                self._readiness.answer(is_ready=False)

        return self._readiness.ask(send)

    def execute(
        self, batch: int, calls: Sequence[BackendCall]
    ) -> list[BackendAnswer | None]:
        """Have the model execute a batch.

        Raises:
            BackendError: its process is gone.
            HungError: its process was ended for it.
        """
        self._is_abandoned = False
        try:
            frame = self._order(batch, calls)
        except ProcessGoneError as error:
            if self._is_abandoned:
                text = f"model '{self._name}' did not return in time"
                raise HungError(text) from error
            if error.was_taken or self.forgetting:
                raise BackendError(self.child.unhealthy) from error
            frame = self._order_again(batch, calls)
        if frame.kind == Kind.FAILED:
            raise BackendError(frame.body.decode(errors="replace"))
        return self._exchange.answers(frame)

    def _order(self, batch: int, calls: Sequence[BackendCall]) -> Frame:
        child = self.child.healthy()
        if not self._is_fresh:
            self._exchange.forget()
            self._is_fresh = True
        try:
            return self._exchange.execute(child, batch, calls)
        except ProcessGoneError:
            child.kill()
            raise

    def _order_again(self, batch: int, calls: Sequence[BackendCall]) -> Frame:
        """Have the next process execute what the last one never began."""
        try:
            return self._order(batch, calls)
        except ProcessGoneError as error:
            raise BackendError(self.child.unhealthy) from error

    def _lost(self) -> None:
        self._is_fresh = False
        self._nested.cancel_all()
        self._readiness.answer(is_ready=False)
        # What the next process counts begins at zero, and is a source of its own.
        self._metrics.close()
        self._families = ()
        self._metrics = self._open_metrics()
        for forget in self.forgetting:
            forget()
        if self._on_lost is not None:
            self._on_lost()

    def _event(self, child: Child, frame: Frame) -> None:
        if frame.kind == Kind.LOG:
            level = _LEVELS[min(frame.body[0], len(_LEVELS) - 1)]
            text = frame.body[1:].decode(errors="replace")
            getattr(_log, level)(text, instance=self._name)
        elif frame.kind == Kind.STREAMED and self._on_streamed is not None:
            self._on_streamed(frame)
        elif frame.kind == Kind.STREAMED_ALL and self._on_streamed_all is not None:
            self._on_streamed_all()
        elif frame.kind == Kind.CALL:
            self._nested.begin(frame, child)
        elif frame.kind == Kind.CANCEL_CALL:
            self._nested.cancel(frame)
        elif frame.kind == Kind.METRICS:
            self._show(families_from_json(frame.body))
        elif frame.kind == Kind.READINESS:
            self._readiness.answer(is_ready=bool(frame.body[0]))

    def _show(self, families: Families) -> None:
        """Have control told of the model's metrics."""
        if families != self._families:
            self._families = families
            self._metrics.changed()
