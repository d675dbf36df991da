"""A model's process that is started again whenever it dies."""

import threading
from collections.abc import Callable

import structlog

from services.core.errors import BackendError
from services.worker.backoff import Backoff
from services.worker.python_backend.frames import Frame, Kind
from services.worker.python_backend.host.child import Child, ProcessGoneError

_log = structlog.get_logger(__name__)

StartChild = Callable[
    [Callable[[Child, Frame], None], Callable[[Child, int], None]], Child
]


class SupervisedChild:
    """The process of one instance, initialized, over all its lives."""

    def __init__(
        self,
        name: str,
        start: StartChild,
        order: bytes,
        on_event: Callable[[Child, Frame], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Start the process and initialize the model.

        Args:
            name: Of the instance.
            start: Starts a process, given who is told of its events and its end.
            order: The body of INITIALIZE.
            on_event: Given what a process sends unasked.
            on_lost: Called when a process has died, before the next one starts.

        Raises:
            BackendError: the model cannot be initialized.
        """
        self._name = name
        self._start = start
        self._order = order
        self._on_event = on_event
        self._on_lost = on_lost
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_starting = True
        self._tells_readiness = False
        self._child: Child | None = None
        self._install(self._initialized())

    @property
    def pid(self) -> int:
        """The process's number; 0 while there is none."""
        child = self._child
        return 0 if child is None else child.pid

    @property
    def tells_readiness(self) -> bool:
        """Whether the model has an ``is_ready``."""
        return self._tells_readiness

    def healthy(self, timeout_s: float | None = None) -> Child:
        """Return the process, waiting for one that is being started.

        Raises:
            BackendError: it does not start, or not in time.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._child or not self._is_starting, timeout_s
            )
            if self._child is None:
                raise BackendError(self.unhealthy)
            return self._child

    @property
    def unhealthy(self) -> str:
        """What clients are told while there is no process."""
        return (
            f"Failed to process the request(s) for model '{self._name}', message: Stub"
            f" process '{self._name}' is not healthy."
        )

    def tell(self, kind: Kind, body: bytes) -> None:
        """Send the process what needs no answer; from any thread."""
        child = self._child
        if child is not None:
            child.tell(kind, body)

    def kill(self) -> None:
        """End the process at once, to have another started; from any thread."""
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """Finalize the model and end its process."""
        with self._changed:
            self._is_closed = True
            child, self._child = self._child, None
            self._changed.notify_all()
        if child is not None:
            child.finalize()

    def _initialized(self) -> Child:
        child = self._start(self._on_event, self._ended)
        try:
            frame = child.order(Kind.INITIALIZE, self._order)
        except ProcessGoneError as error:
            child.kill()
            text = f"the process of '{self._name}' ended while it was initialized"
            raise BackendError(text) from error
        if frame.kind == Kind.FAILED:
            child.kill()
            raise BackendError(frame.body.decode(errors="replace"))
        self._tells_readiness = bool(frame.body)
        return child

    def _install(self, child: Child) -> None:
        """Have batches executed by a process that stands."""
        with self._changed:
            is_wanted = not self._is_closed
            if is_wanted:
                self._child = child
            self._is_starting = False
            self._changed.notify_all()
        if not is_wanted:
            child.finalize()
        elif child.has_ended:
            self._ended(child, 0)

    def _ended(self, child: Child, status: int) -> None:
        """Have a process that was not told to end started again."""
        with self._changed:
            if self._child is not child:  # it never stood, or was told to end
                return
            self._child = None
            self._is_starting = True
        _log.error("a model's process has died", instance=self._name, status=status)
        self._on_lost()
        threading.Thread(
            target=self._restart, name=f"{self._name} restart", daemon=True
        ).start()

    def _restart(self) -> None:
        """Start the process until it stands; only the first attempt is waited for."""
        backoff = Backoff()
        while not self._is_closed:
            try:
                child = self._initialized()
            except BackendError as error:
                _log.error(
                    "a model's process does not start",
                    instance=self._name,
                    reason=str(error),
                )
                with self._changed:
                    self._is_starting = False
                    self._changed.notify_all()
                    delay_s = backoff.after_failure()
                    self._changed.wait_for(lambda: self._is_closed, delay_s)
                continue
            self._install(child)
            return
