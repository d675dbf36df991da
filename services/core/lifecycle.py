"""The life of one generation of a model version: five states, one table.

A generation is one loading of a version, numbered by control. A reload is a new
generation that loads beside the old one, so each has a machine of its own.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class ModelState(enum.Enum):
    """Triton's words for the state of a model version."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class ModelEvent(enum.Enum):
    """What can happen to a generation.

    LOADED: every worker that has instances of it reported them loaded.
    DRAINED: every worker that had instances of it reported them gone.
    WORKER_LOST: the last worker that had instances of it is gone.
    """

    LOAD = "LOAD"
    LOADED = "LOADED"
    LOAD_FAILED = "LOAD_FAILED"
    UNLOAD = "UNLOAD"
    DRAINED = "DRAINED"
    WORKER_LOST = "WORKER_LOST"


class IllegalTransitionError(Exception):
    """An event that cannot happen in a state: a mistake of ours, not a client's."""

    def __init__(self, state: ModelState, event: ModelEvent) -> None:
        super().__init__(f"{event.name} cannot happen to a model that is {state.name}")
        self.state = state
        self.event = event


_S = ModelState
_E = ModelEvent

TRANSITIONS: Final[Mapping[ModelState, Mapping[ModelEvent, ModelState]]] = (
    MappingProxyType(
        {
            _S.UNKNOWN: {_E.LOAD: _S.LOADING},
            _S.LOADING: {
                _E.LOADED: _S.READY,
                _E.LOAD_FAILED: _S.UNAVAILABLE,
                _E.UNLOAD: _S.UNLOADING,
                _E.WORKER_LOST: _S.UNAVAILABLE,
            },
            _S.READY: {_E.UNLOAD: _S.UNLOADING, _E.WORKER_LOST: _S.UNAVAILABLE},
            _S.UNLOADING: {
                _E.LOADED: _S.UNLOADING,  # the load ended after the unload was asked
                _E.LOAD_FAILED: _S.UNAVAILABLE,
                _E.DRAINED: _S.UNAVAILABLE,
                _E.WORKER_LOST: _S.UNAVAILABLE,
            },
            _S.UNAVAILABLE: {_E.LOAD: _S.LOADING},
        }
    )
)


def next_state(state: ModelState, event: ModelEvent) -> ModelState:
    """Return the state after ``event``.

    Raises:
        IllegalTransitionError: the event cannot happen in ``state``.
    """
    following = TRANSITIONS[state].get(event)
    if following is None:
        raise IllegalTransitionError(state, event)
    return following
