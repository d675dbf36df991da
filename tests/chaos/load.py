"""Clients that never pause, and what became of each of their requests."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

CLIENTS: Final = 8
_PAUSE_S: Final = 0.05


@dataclass(slots=True, kw_only=True)
class Load:
    """Requests to ``simple``, from several threads.

    Attributes:
        answered: How many got the right answer so far.
        slowest_s: How long the slowest of them took.
        errors: What the others were told.
    """

    answered: int = 0
    slowest_s: float = 0.0
    errors: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self, port: int) -> None:
        """Ask until the end; in a thread of its own."""
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            number = 0
            while not self._over.is_set():
                number += 1
                began = time.monotonic()
                error = ask(client, number)
                with self._news:
                    if error:
                        self.errors.append(error)
                    else:
                        self.answered += 1
                        took_s = time.monotonic() - began
                        self.slowest_s = max(self.slowest_s, took_s)
                    self._news.notify_all()

    def wait_for_more(self, answers: int, within_s: float) -> None:
        """Return once so many more requests were answered.

        Raises:
            AssertionError: they were not, in time.
        """
        with self._news:
            wanted = self.answered + answers
            if not self._news.wait_for(lambda: self.answered >= wanted, within_s):
                raise AssertionError(f"no answers within {within_s} s: {self.errors}")

    def end(self) -> None:
        """Let each client finish its request."""
        self._over.set()


def ask(client: Any, number: int = 1) -> str:  # noqa: ANN401 - tritonclient is untyped
    """Return what is wrong with the answer to one request; "" if nothing."""
    values = np.full((1, 16), number, dtype=np.int32)
    inputs = []
    for name in ("INPUT0", "INPUT1"):
        tensor = triton.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(values)
        inputs.append(tensor)
    try:
        result = client.infer("simple", inputs, client_timeout=60)
    except InferenceServerException as error:
        return str(error)
    right = np.array_equal(result.as_numpy("OUTPUT0"), values + values)
    return "" if right else "wrong numbers"


@contextlib.contextmanager
def load(port: int) -> Iterator[Load]:
    """Put the server under load, until the block ends."""
    running = Load()
    threads = [
        threading.Thread(target=running.run, args=(port,)) for _ in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    try:
        running.wait_for_more(CLIENTS, within_s=30)
        yield running
    finally:
        running.end()
        for thread in threads:
            thread.join()


def wait_until(condition: Callable[[], bool], within_s: float) -> None:
    """Return once ``condition`` holds.

    Raises:
        AssertionError: it did not, in time.
    """
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s")
        pause.wait(_PAUSE_S)
