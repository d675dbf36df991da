"""Who is asked whether it is ready, and what becomes of the answers."""

import threading

import pytest

from services.worker.python_backend.host.readiness import Readiness
from services.worker.readiness import ReadinessChecks
from tests.unit.worker.puppets import WAIT_S


class Instance:
    """Says what it was made to say, when it is let."""

    def __init__(self, answer: bool | Exception) -> None:
        self._answer = answer
        self.go_on = threading.Event()
        self.go_on.set()

    def is_ready(self) -> bool:
        assert self.go_on.wait(WAIT_S)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("answers", "is_ready"),
    [
        ([], True),
        ([True, True], True),
        ([True, False], False),
        ([ValueError("no idea"), True], False),
    ],
)
def test_a_model_is_ready_if_all_its_instances_are(
    answers: list[bool | Exception], is_ready: bool
) -> None:
    checks, told, done = ReadinessChecks(), [], threading.Event()

    def report(answer: bool) -> None:
        told.append(answer)
        done.set()

    checks.begin([Instance(answer) for answer in answers], report)
    assert done.wait(WAIT_S)
    checks.stop()
    assert told == [is_ready]


def test_while_a_question_is_open_no_other_is_sent() -> None:
    readiness = Readiness()
    sent: list[int] = []

    def send() -> None:
        sent.append(len(sent))
        assert not readiness.ask(send, timeout_s=0)
        readiness.answer(is_ready=True)

    assert readiness.ask(send)
    assert sent == [0]


def test_a_question_that_took_too_long_stays_open_until_it_is_answered() -> None:
    readiness = Readiness()
    sent: list[int] = []

    def send() -> None:
        sent.append(len(sent))

    assert not readiness.ask(send, timeout_s=0)
    assert not readiness.ask(send, timeout_s=0)
    assert sent == [0]
    readiness.answer(is_ready=True)
    assert not readiness.ask(send, timeout_s=0)
    assert sent == [0, 1]


def test_an_answer_that_nobody_asked_for_is_nobodys() -> None:
    readiness = Readiness()
    readiness.answer(is_ready=True)
    assert not readiness.ask(lambda: readiness.answer(is_ready=False))
    assert readiness.ask(lambda: readiness.answer(is_ready=True))
