"""One model's process, from start to end."""

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from services.core import parent_death
from services.core.errors import BackendError
from services.worker.python_backend import frames
from services.worker.python_backend.frames import Frame, FrameSocket, Kind
from services.worker.python_backend.host import spawning

_START: Final = str(Path(frames.__file__).with_name("start.py"))
# How long a model may take to finalize before it is killed.
_FAREWELL_S: Final = 30.0

_log = structlog.get_logger(__name__)


class ProcessGoneError(Exception):
    """The model's process has ended without being told to.

    Attributes:
        was_taken: Whether it may have begun to carry the order out.
    """

    def __init__(self, reason: Exception) -> None:
        """Tell by what was seen of its end."""
        super().__init__(str(reason))
        # Reset rather than ended: it died without having read what was sent.
        cause = reason.__cause__ if isinstance(reason, EOFError) else reason
        self.was_taken = not isinstance(cause, OSError)


class Child:
    """A process that obeys one order at a time.

    Attributes:
        pid: Its number.
        has_ended: Whether ``on_end`` has been or is about to be called.
    """

    def __init__(
        self,
        python: str,
        name: str,
        on_event: "Callable[[Child, Frame], None]",
        on_end: "Callable[[Child, int], None]",
        environment: dict[str, str] | None = None,
    ) -> None:
        """Start it.

        Args:
            python: The interpreter.
            name: Of the instance, for the process list.
            on_event: Given it and what it sends unasked; called by one thread.
            on_end: Given it and its status (-N: killed by signal N) at its end.
            environment: In place of this process's.

        Raises:
            BackendError: it cannot be started.
        """
        work, their_work = socket.socketpair()
        events, their_events = socket.socketpair()
        theirs = (their_work.fileno(), their_events.fileno())
        argv = [python, _START, *map(str, theirs), name]
        own = os.environ if environment is None else environment
        variables = {**own, **parent_death.environment_for_child()}
        try:
            self._process = spawning.spawn(
                lambda: subprocess.Popen(
                    argv,
                    env=variables,
                    pass_fds=theirs,
                    stdin=subprocess.DEVNULL,
                    process_group=0,
                )
            )
        except OSError as error:
            work.close()
            events.close()
            text = f"cannot start a Python process for '{name}': {error}"
            raise BackendError(text) from error
        finally:
            their_work.close()
            their_events.close()
        self._name = name
        self._on_event = on_event
        self._on_end = on_end
        self._work = FrameSocket(work)
        self._events = FrameSocket(events)
        self.pid = self._process.pid
        self.has_ended = False
        self._listener = threading.Thread(
            target=self._listen, name=f"{name} events", daemon=True
        )
        self._waiter = threading.Thread(
            target=self._wait, name=f"{name} end", daemon=True
        )
        self._listener.start()
        self._waiter.start()

    def order(
        self, kind: Kind, body: bytes = b"", descriptors: Sequence[int] = ()
    ) -> Frame:
        """Send an order and wait for the answer; one thread at a time.

        Raises:
            ProcessGoneError: the process has ended.
        """
        try:
            self._work.send(kind, body, descriptors)
            return self._work.receive()
        except (OSError, EOFError) as error:
            raise ProcessGoneError(error) from error

    def tell(self, kind: Kind, body: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send what needs no answer, from any thread; nothing if it has ended."""
        with contextlib.suppress(OSError):
            self._events.send(kind, body, descriptors)

    def finalize(self) -> None:
        """Finalize the model and end the process, kindly if it lets us."""
        killer = threading.Timer(_FAREWELL_S, self._process.kill)
        killer.daemon = True
        killer.start()
        with contextlib.suppress(ProcessGoneError):  # it was faster
            self.order(Kind.FINALIZE)
        self._work.hang_up()
        self._waiter.join()
        killer.cancel()

    def kill(self) -> None:
        """End the process at once; returns when its end has been told."""
        self._process.kill()
        self._waiter.join()

    def _listen(self) -> None:
        while True:
            try:
                frame = self._events.receive()
            except EOFError:
                return
            try:
                self._on_event(self, frame)
            except Exception:  # noqa: BLE001 - logged; others may follow
                _log.exception("an event of a model was lost", name=self._name)

    def _wait(self) -> None:
        """Tell of the end, after everything that was said before it.

        The sockets do not tell it: what the model has forked may hold them open.
        """
        status = self._process.wait()
        self._work.hang_up()
        self._events.hang_up()
        self._listener.join()
        self.has_ended = True
        self._on_end(self, status)
