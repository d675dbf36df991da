"""A model's process, and what is said with it: batches, calls, logs, metrics."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog

from services.core.datatype import DataType
from services.core.errors import BackendError
from services.worker.backend import BackendAnswer, BackendCall
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
from services.worker.python_backend.host.tensor_exchange import TensorExchange
from services.worker.watchdog import HungError

_LEVELS: Final = ("info", "warning", "error", "debug")

_log = structlog.get_logger(__name__)


class Conversation:
    """What both kinds of instances have: a process, and memory shared with it.

    Attributes:
        child: The process, or the one that takes its place.
        forgetting: Called when the process has died, with all that it knew of
            sequences.
    """

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
        """Start the process and initialize the model.

        Args:
            name: As Triton names it, e.g. "simple_0_0".
            start: See SupervisedChild.
            order: The body of INITIALIZE.
            datatypes: Of the inputs, in the configuration's order.
            peers: The way to other models.
            metrics: Where it shows what it counts itself.
            on_streamed: Takes each response of a decoupled model.
            on_streamed_all: Is told that a batch's responses are all there.
            on_lost: Is told that the process has ended.

        Raises:
            BackendError: the model cannot be initialized.
        """
        self._name = name
        self._exchange = TensorExchange(datatypes)
        self._on_streamed = on_streamed
        self._on_streamed_all = on_streamed_all
        self._on_lost = on_lost
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
