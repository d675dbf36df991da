"""The states of sequences that may go on elsewhere, kept by control for this router.

Control alone has a store. What it has not confirmed yet is kept here, so that a state
is in one of both places from the moment that its request was answered.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from protos import control_pb2

# Beyond the silence after which a sequence ends anyway.
_SPARE_MS: Final = 60_000
_MS: Final = 1_000_000

OnState: TypeAlias = Callable[[bytes | None], None]
"""Given a serialized SequenceStates; None if there is none, or nobody can be asked."""


@dataclass(frozen=True, slots=True)
class _Unsaved:
    step: int
    report: control_pb2.RouterReport
    data: bytes


class StateCheckpoints:
    """States by their sequence; on the reactor's thread."""

    __slots__ = ("_asked", "_prefix", "_send", "_step", "_unsaved")

    def __init__(self) -> None:
        """Begin without a state, and without a stream to control."""
        self._prefix = uuid.uuid4().hex
        self._send: Callable[[control_pb2.RouterReport], bool] = lambda _: False
        self._step = 0
        self._unsaved: dict[str, _Unsaved] = {}
        self._asked: dict[str, OnState] = {}

    def connect(self, send: Callable[[control_pb2.RouterReport], bool]) -> None:
        """Reach control by ``send``; False from it: there is no stream now."""
        self._send = send

    def connected(self) -> None:
        """Say again, on a new stream, what was not confirmed or answered."""
        for unsaved in self._unsaved.values():
            self._send(unsaved.report)
        for key in self._asked:
            self._ask(key)

    def save(self, generation: int, number: int, data: bytes, idle_ns: int) -> None:
        """Keep the state of a sequence in place of the one before.

        Args:
            generation: Of its model.
            number: Of its life there.
            data: A serialized SequenceStates.
            idle_ns: How long the sequence may be silent.
        """
        key = self._key(generation, number)
        self._step += 1
        checkpoint = control_pb2.StateCheckpoint(
            key=key,
            step=self._step,
            data=data,
            expires_ms=idle_ns // _MS + _SPARE_MS,
        )
        report = control_pb2.RouterReport(state_checkpoint=checkpoint)
        self._unsaved[key] = _Unsaved(self._step, report, data)
        self._send(report)

    def forget(self, generation: int, number: int) -> None:
        """Let go of the state of a sequence that is over."""
        key = self._key(generation, number)
        self._unsaved.pop(key, None)
        self._asked.pop(key, None)
        forgotten = control_pb2.StateCheckpoint(key=key, is_over=True)
        self._send(control_pb2.RouterReport(state_checkpoint=forgotten))

    def fetch(self, generation: int, number: int, on_state: OnState) -> None:
        """Have ``on_state`` called with the newest state, now or soon."""
        key = self._key(generation, number)
        unsaved = self._unsaved.get(key)
        if unsaved is not None:
            on_state(unsaved.data)
            return
        self._asked[key] = on_state
        self._ask(key)

    def saved(self, update: control_pb2.RouterUpdate) -> None:
        """Hear that a state is safe with control."""
        stored = update.state_stored
        unsaved = self._unsaved.get(stored.key)
        if unsaved is not None and unsaved.step == stored.step:
            del self._unsaved[stored.key]

    def found(self, update: control_pb2.RouterUpdate) -> None:
        """Hear what control has of a sequence."""
        answer = update.state_found
        on_state = self._asked.pop(answer.key, None)
        if on_state is not None:
            on_state(answer.data if answer.is_found else None)

    def _ask(self, key: str) -> None:
        request = control_pb2.StateRequest(key=key)
        self._send(control_pb2.RouterReport(state_request=request))

    def _key(self, generation: int, number: int) -> str:
        return f"{self._prefix}:{generation}:{number}"
