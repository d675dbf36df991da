"""Instances of Python models, as the worker sees them."""

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Final

from services.core.datatype import DataType
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
    VersionMetrics,
)
from services.worker.peers import Peers
from services.worker.python_backend.frames import Frame, Kind
from services.worker.python_backend.host.conversation import Conversation
from services.worker.python_backend.host.supervised_child import (
    StartChild,
)
from services.worker.python_backend.host.tensor_exchange import (
    streamed_answer,
)

_INTERNAL: Final = 13  # google.rpc.Code
_PLACE: Final = struct.Struct("<QI")


class _InOwnProcess:
    """What an instance can because it has a process of its own."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    @property
    def pid(self) -> int:
        """The process's number; 0 while there is none."""
        return self._conversation.child.pid

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


class PythonModel(_InOwnProcess):
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
        super().__init__(
            Conversation(name, start, order, datatypes, peers=peers, metrics=metrics)
        )

    def execute_requests(self, calls: Sequence[BackendCall]) -> list[BackendAnswer]:
        """Run one batch; see RequestBackend."""
        missing = BackendFailure(_INTERNAL, "the model did not answer")
        answers = self._conversation.execute(0, calls)
        return [missing if one is None else one for one in answers]


class DecoupledPythonModel(_InOwnProcess):
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
        super().__init__(
            Conversation(
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
        )

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

    def unload(self) -> None:
        """Finalize the model and end its process; what was open fails."""
        super().unload()
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
