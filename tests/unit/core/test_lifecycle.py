"""The state machine of one generation, cell by cell."""

import pytest

from services.core.lifecycle import (
    TRANSITIONS,
    IllegalTransitionError,
    ModelEvent,
    ModelState,
    next_state,
)

S, E = ModelState, ModelEvent

# Written out once more by hand: a changed cell must be changed twice.
LEGAL = {
    (S.UNKNOWN, E.LOAD): S.LOADING,
    (S.LOADING, E.LOADED): S.READY,
    (S.LOADING, E.LOAD_FAILED): S.UNAVAILABLE,
    (S.LOADING, E.UNLOAD): S.UNLOADING,
    (S.LOADING, E.WORKER_LOST): S.UNAVAILABLE,
    (S.READY, E.UNLOAD): S.UNLOADING,
    (S.READY, E.WORKER_LOST): S.UNAVAILABLE,
    (S.UNLOADING, E.LOADED): S.UNLOADING,
    (S.UNLOADING, E.LOAD_FAILED): S.UNAVAILABLE,
    (S.UNLOADING, E.DRAINED): S.UNAVAILABLE,
    (S.UNLOADING, E.WORKER_LOST): S.UNAVAILABLE,
    (S.UNAVAILABLE, E.LOAD): S.LOADING,
}


@pytest.mark.parametrize("event", ModelEvent)
@pytest.mark.parametrize("state", ModelState)
def test_every_cell_is_as_written(state: ModelState, event: ModelEvent) -> None:
    expected = LEGAL.get((state, event))
    if expected is not None:
        assert next_state(state, event) is expected
        return
    with pytest.raises(IllegalTransitionError) as raised:
        next_state(state, event)
    assert (raised.value.state, raised.value.event) == (state, event)
    assert str(raised.value) == (
        f"{event.name} cannot happen to a model that is {state.name}"
    )


def test_every_state_has_a_row() -> None:
    assert set(TRANSITIONS) == set(ModelState)


def test_states_are_tritons_words() -> None:
    assert [state.value for state in ModelState] == [
        "UNKNOWN",
        "LOADING",
        "READY",
        "UNLOADING",
        "UNAVAILABLE",
    ]
