"""What waits for a slow reader, and who is paused for it."""

from services.core.backlog import ENOUGH_BYTES, MOST_BYTES, Backlog


class Model:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def pace(self, is_slow: bool) -> None:
        self.told.append(is_slow)


def test_who_answers_while_too_much_waits_is_paused_once() -> None:
    backlog, early, late = Backlog(), Model(), Model()
    backlog.add(MOST_BYTES, early.pace)
    assert (early.told, backlog.is_long) == ([], False)
    backlog.add(1, late.pace)
    backlog.add(1, late.pace)
    assert (early.told, late.told, backlog.is_long) == ([], [True], True)


def test_all_go_on_when_little_is_left() -> None:
    backlog, models = Backlog(), [Model(), Model()]
    for model in models:
        backlog.add(MOST_BYTES + 1, model.pace)
    backlog.take(MOST_BYTES + 1)
    backlog.take(MOST_BYTES + 1 - ENOUGH_BYTES)
    assert [model.told for model in models] == [[True], [True]]
    backlog.take(1)
    assert [model.told for model in models] == [[True, False], [True, False]]
    backlog.take(ENOUGH_BYTES - 1)
    assert models[0].told == [True, False]


def test_who_has_been_resumed_is_paused_again() -> None:
    backlog, model = Backlog(), Model()
    for _ in range(2):
        backlog.add(MOST_BYTES + 1, model.pace)
        backlog.take(MOST_BYTES + 1)
    assert model.told == [True, False, True, False]


def test_the_last_response_counts_and_pauses_nobody() -> None:
    backlog = Backlog()
    backlog.add(MOST_BYTES + 1, None)
    assert backlog.is_long
