"""Models with states that take their requests one by one; see stateful_backend."""

from collections.abc import Sequence
from typing import Final

from services.core.model_config import ModelConfig
from services.worker.backend import (
    BackendAnswer,
    BackendCall,
    BackendFailure,
    BackendReply,
    RequestBackend,
    RequestTensor,
    SelfTelling,
)
from services.worker.sequence_states import SequenceStates, State, States
from services.worker.signature import input_specs, output_names

_INTERNAL: Final = 13  # google.rpc.Code


class StatefulRequestBackend:
    """One instance of a model with states that takes requests; see RequestBackend.

    ``states`` is where the sequences of the batch at hand have theirs.
    """

    def __init__(
        self, backend: RequestBackend, config: ModelConfig, first: States
    ) -> None:
        """Keep the states of ``backend``, which begin as ``first``."""
        self._backend = backend
        self._declared = config.states
        self._first = first
        self._rows = (1,) if config.max_batch_size > 0 else ()
        # What requests do not have stands behind what they have.
        self._number_slot = self._first_input = len(input_specs(config))
        names = output_names(config)
        self._outputs = tuple(names.index(s.output_name) for s in self._declared)
        self.states = SequenceStates()

    def execute_requests(self, calls: Sequence[BackendCall]) -> Sequence[BackendAnswer]:
        """Run one batch; see RequestBackend."""
        numbers = [self._number(call) for call in calls]
        current = [self.states.of(number) or self._first for number in numbers]
        told = [
            self._told(call, states)
            for call, states in zip(calls, current, strict=True)
        ]
        answers = self._backend.execute_requests(told)
        return [
            self._keep(number, states, answer)
            for number, states, answer in zip(numbers, current, answers, strict=True)
        ]

    def is_ready(self) -> bool:
        """Ask the model, if it knows; see SelfTelling."""
        return not isinstance(self._backend, SelfTelling) or self._backend.is_ready()

    def unload(self) -> None:
        """Release everything."""
        self._backend.unload()

    def _number(self, call: BackendCall) -> int:
        for tensor in call.inputs:
            if tensor.slot == self._number_slot:
                return int.from_bytes(tensor.data, "little")
        return 0

    def _told(self, call: BackendCall, states: States) -> BackendCall:
        """Return a call with the states in the place of the sequence's number."""
        own = [t for t in call.inputs if t.slot != self._number_slot]
        own += [
            RequestTensor(
                self._first_input + k,
                (*self._rows, *state.shape),
                memoryview(state.data),
            )
            for k, state in enumerate(states)
        ]
        wanted = tuple(sorted({*call.outputs, *self._outputs}))
        return call._replace(inputs=tuple(own), outputs=wanted)

    def _keep(
        self, number: int, current: States, answer: BackendAnswer
    ) -> BackendAnswer:
        """Keep the states of an answer; one that it lacks stays as it was."""
        if not isinstance(answer, BackendReply):
            return answer
        by_slot = {tensor.slot: tensor for tensor in answer.tensors}
        states = list(current)
        for k, slot in enumerate(self._outputs):
            tensor = by_slot.get(slot)
            if tensor is None:
                continue
            declared = self._declared[k]
            shape = tensor.shape[len(self._rows) :]
            if tensor.datatype is not declared.datatype or not declared.fits(shape):
                text = (
                    f"state output '{declared.output_name}' is "
                    f"{tensor.datatype.value} {list(tensor.shape)} where the "
                    f"configuration says {declared.datatype.value} "
                    f"{list(declared.dims)}"
                )
                return BackendFailure(_INTERNAL, text)
            states[k] = State(shape, bytes(tensor.data))
        if number:
            self.states.keep(number, tuple(states))
        return answer
