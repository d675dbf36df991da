"""Backends and streams that do as they are told."""

import queue
import threading
from collections.abc import Callable, Sequence

import numpy as np

from services.worker.backend import Tensors

WAIT_S = 10


class ManualClock:
    """A clock that advances by a fixed step at every look."""

    def __init__(self, step_ns: int = 0) -> None:
        self._step_ns = step_ns
        self._now_ns = 0

    def now_ns(self) -> int:
        self._now_ns += self._step_ns
        return self._now_ns


class PuppetBackend:
    """Adds and subtracts unless told otherwise, and remembers its batches."""

    def __init__(self, answer: Callable[[Tensors], Tensors] | None = None) -> None:
        self.answer = answer or self._add_sub
        self.batches: list[dict[str, np.ndarray]] = []
        self.asked: list[tuple[str, ...]] = []
        self.is_unloaded = False

    def execute(self, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
        self.batches.append({name: array.copy() for name, array in inputs.items()})
        self.asked.append(tuple(output_names))
        return self.answer(inputs)

    def unload(self) -> None:
        self.is_unloaded = True

    @staticmethod
    def _add_sub(inputs: Tensors) -> Tensors:
        return {"SUM": inputs["A"] + inputs["B"], "DIFF": inputs["A"] - inputs["B"]}


class PuppetStream:
    """A stream whose other end is the test."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.status: tuple[int, str] | None = None
        self.sent: queue.Queue[bytes] = queue.Queue()
        # To be called by the test, as by who sends in earnest.
        self.on_its_way: queue.Queue[Callable[[], None]] = queue.Queue()
        self.finished = threading.Event()
        self.cancelled = threading.Event()
        self.closed = threading.Event()
        self._incoming: queue.Queue[bytes | None] = queue.Queue()

    # The worker's side.

    def receive(self) -> bytes | None:
        return self._incoming.get(timeout=WAIT_S)

    def send(self, message: bytes, then: Callable[[], None] | None = None) -> None:
        assert not self.finished.is_set(), "sent after the end"
        self.sent.put(message)
        if then is not None:
            self.on_its_way.put(then)

    def finish(self) -> None:
        self.finished.set()

    def cancel(self) -> None:
        self.cancelled.set()
        self._incoming.put(None)

    def close(self) -> None:
        self.closed.set()

    # The test's side.

    def deliver(self, message: bytes) -> None:
        self._incoming.put(message)

    def end(self) -> None:
        self.status = (14, "the router is gone")
        self._incoming.put(None)


class PuppetRouters:
    """Accepts dials; the test takes the streams one by one."""

    def __init__(self) -> None:
        self._opened: queue.Queue[PuppetStream] = queue.Queue()

    def open(self, endpoint: str) -> PuppetStream:
        stream = PuppetStream(endpoint)
        self._opened.put(stream)
        return stream

    def accept(self) -> PuppetStream:
        return self._opened.get(timeout=WAIT_S)
