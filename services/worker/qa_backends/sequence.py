"""The backend "sequence": adds the values of a sequence up, a sum for each slot.

START begins the sum of a slot anew; without READY the slot is left alone.

Source: triton-inference-server/server, src/test/sequence, and its parameter
``execute_delay_ms`` (before each batch).
"""

import time
from collections.abc import Sequence
from typing import Final

from services.core.errors import ServingError
from services.worker import wire
from services.worker.backend import (
    BackendAnswer,
    BackendCall,
    BackendFailure,
    BackendReply,
    InstancePlace,
    ModelSource,
    Runtime,
)
from services.worker.qa_backends import accumulators
from services.worker.qa_backends.expectations import expect_cpu, whole_parameter
from services.worker.qa_backends.runtime import QaRuntime

_MS_PER_S: Final = 1000


def runtime() -> Runtime:
    """Return the way to load models of this backend."""
    return QaRuntime("sequence", check, SequenceSums)


class SequenceSums:
    """One instance; see RequestBackend."""

    def __init__(self, source: ModelSource, place: InstancePlace, _number: int) -> None:
        """Begin with sums of zero."""
        expect_cpu(source, place, "sequence")
        config = source.config
        self._delay_s = whole_parameter(config, "execute_delay_ms") / _MS_PER_S
        self._reader = accumulators.StepReader(config)
        # By the place in the batch, which is the slot of the sequence.
        self._sums = [0] * max(config.max_batch_size, 1)

    def execute_requests(self, calls: Sequence[BackendCall]) -> list[BackendAnswer]:
        """Run one batch."""
        if self._delay_s:
            time.sleep(self._delay_s)
        return [self._answer(slot, call) for slot, call in enumerate(calls)]

    def unload(self) -> None:
        """Nothing is held."""

    def _answer(self, slot: int, call: BackendCall) -> BackendAnswer:
        try:
            step = self._reader.read(call)
        except ServingError as error:
            return BackendFailure(*wire.error_status(error))
        if not step.is_set("READY"):
            return BackendReply((), {})
        before = 0 if step.is_set("START") else self._sums[slot]
        self._sums[slot] = accumulators.int32(before + step.values)
        return accumulators.reply(step, self._sums[slot], call.outputs)


def check(source: ModelSource) -> None:
    """Refuse another configuration than the one that this backend is for.

    Raises:
        ConfigError: in Triton's words.
    """
    accumulators.check_controls(
        source.config,
        ("START", "READY"),
        "'START' and 'READY' must be configured as the control inputs",
    )
    accumulators.check_tensors(source.config)
