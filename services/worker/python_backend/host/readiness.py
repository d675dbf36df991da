"""Asks a model's process whether the model is ready, once for all who ask."""

import threading
from collections.abc import Callable
from typing import Final

TIMEOUT_S: Final = 5.0
"""How long an answer is waited for, as Triton does."""


class Readiness:
    """The open question to one instance's process.

    A question that is asked while another is open shares its answer. One that took
    too long stays open: who asks then gets the answer when it comes.
    """

    def __init__(self) -> None:
        """Begin without a question."""
        self._changed = threading.Condition()
        self._asked = 0
        self._answered = 0
        self._is_ready = False

    def ask(self, send: Callable[[], None], timeout_s: float = TIMEOUT_S) -> bool:
        """Return what the model says; False if it has not spoken in time.

        Args:
            send: Sends the question.
            timeout_s: How long to wait.
        """
        with self._changed:
            is_first = self._asked == self._answered
            if is_first:
                self._asked += 1
            number = self._asked
        if is_first:
            send()
        with self._changed:
            has_answer = self._changed.wait_for(
                lambda: self._answered >= number, timeout_s
            )
            return has_answer and self._is_ready

    def answer(self, *, is_ready: bool) -> None:
        """Take the model's answer, or False for a process that has ended."""
        with self._changed:
            if self._answered < self._asked:
                self._answered += 1
                self._is_ready = is_ready
            self._changed.notify_all()
