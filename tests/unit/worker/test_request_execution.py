"""Batches of backends that take requests one by one: what their failures mean."""

from collections.abc import Sequence

import pytest

from services.worker.backend import BackendAnswer, BackendCall, BackendFailure
from services.worker.request_execution import RequestExecution
from services.worker.watchdog import HungError
from tests.unit.worker.messages import answers, batch, ints, request, signature, tensor
from tests.unit.worker.puppets import ManualClock

INTERNAL, RESOURCE_EXHAUSTED = 13, 8


class Failing:
    """Gives or raises what it was made with."""

    def __init__(self, outcome: BackendFailure | Exception) -> None:
        self._outcome = outcome

    def execute_requests(self, calls: Sequence[BackendCall]) -> Sequence[BackendAnswer]:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return [self._outcome] * len(calls)

    def unload(self) -> None:
        return


def run(outcome: BackendFailure | Exception) -> bytes:
    of = signature([tensor("A")], [tensor("SUM")])
    execution = RequestExecution(of, Failing(outcome), ManualClock())
    return execution.run(batch(request({"A": ints(1, 2, 3, 4)})))


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (MemoryError(), RESOURCE_EXHAUSTED),
        (RuntimeError("CUDA out of memory"), RESOURCE_EXHAUSTED),
        (BackendFailure(INTERNAL, "message: MemoryError: "), RESOURCE_EXHAUSTED),
        (BackendFailure(INTERNAL, "out of memory", is_answer=True), INTERNAL),
        (
            BackendFailure(INTERNAL, "ValueError: x\n\nAt:\n  /out of memory/model.py"),
            INTERNAL,
        ),
    ],
)
def test_only_an_execution_that_did_not_fit_is_to_be_tried_with_fewer_rows(
    outcome: BackendFailure | Exception, code: int
) -> None:
    (answer,) = answers(run(outcome))
    assert answer.error is not None
    assert answer.error[0] == code


def test_a_hung_execution_answers_nobody() -> None:
    with pytest.raises(HungError):
        run(HungError("the model does not return"))
