"""Asks the instances of a model whether they are ready, all at once."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from services.worker.backend import SelfTelling

_THREADS: Final = 16


class ReadinessChecks:
    """The questions that are open; each instance may take some seconds."""

    def __init__(self) -> None:
        """Begin without a question."""
        self._threads = ThreadPoolExecutor(_THREADS, "readiness")

    def begin(
        self, instances: Sequence[SelfTelling], report: Callable[[bool], None]
    ) -> None:
        """Ask ``instances``; ``report`` is told once whether all are ready."""
        if not instances:
            report(True)  # noqa: FBT003 - a callback
            return
        question = _Question(len(instances), report)
        for instance in instances:
            future = self._threads.submit(instance.is_ready)
            future.add_done_callback(question.answered)

    def stop(self) -> None:
        """Drop what has not been asked."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Question:
    def __init__(self, count: int, report: Callable[[bool], None]) -> None:
        self._lock = threading.Lock()
        self._left = count
        self._is_ready = True
        self._report = report

    def answered(self, future: "Future[bool]") -> None:
        """Take one instance's answer; one that cannot give any is not ready."""
        is_ready = (
            not future.cancelled() and future.exception() is None and future.result()
        )
        with self._lock:
            self._is_ready = self._is_ready and is_ready
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._report(self._is_ready)
