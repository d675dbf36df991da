"""Sums of a sequence's values, and how a request is told where it stands. Pure.

Both test backends of sequences give the sum so far in every element of OUTPUT.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from services.core.datatype import DataType
from services.core.errors import UnsupportedError
from services.core.model_config import ModelConfig
from services.worker.backend import BackendCall, BackendReply, ReplyTensor
from services.worker.qa_backends.expectations import expect
from services.worker.signature import input_specs

_INT32_SPAN: Final = 1 << 32
_INT32_MIN: Final = -(1 << 31)


class Step(NamedTuple):
    """One request of a sequence.

    Attributes:
        values: The sum of its INPUT.
        controls: The bytes of its control inputs, by name.
        shape: Of its INPUT.
    """

    values: int
    controls: Mapping[str, bytes]
    shape: tuple[int, ...]

    def is_set(self, control: str) -> bool:
        """Tell whether a flag is anything but zero."""
        return any(self.controls[control])


class StepReader:
    """Reads the requests of one model."""

    def __init__(self, config: ModelConfig) -> None:
        """Know the model's inputs, INPUT first and then its controls."""
        self._names = [spec.name for spec in input_specs(config)]
        self._is_batched = config.max_batch_size > 0

    def read(self, call: BackendCall) -> Step:
        """Return what a request says.

        Raises:
            UnsupportedError: it has more than one row, or lacks an input.
        """
        found = {self._names[tensor.slot]: tensor for tensor in call.inputs}
        for name in self._names:
            if name not in found:
                raise UnsupportedError(f"failed to get input '{name}'")
        given = found.pop("INPUT")
        if self._is_batched and given.shape[0] != 1:
            message = "unable to execute more than one timestep at a time"
            raise UnsupportedError(message)
        return Step(
            int(np.frombuffer(given.data, "<i4").sum(dtype=np.int64)),
            {name: bytes(tensor.data) for name, tensor in found.items()},
            given.shape,
        )


def int32(value: int) -> int:
    """Return ``value`` as 32 bits hold it."""
    return (value - _INT32_MIN) % _INT32_SPAN + _INT32_MIN


def reply(step: Step, total: int, wanted: Sequence[int]) -> BackendReply:
    """Return OUTPUT, if it is wanted: ``total`` in INPUT's shape."""
    if not wanted:
        return BackendReply((), {})
    data = memoryview(np.full(step.shape, total, "<i4").tobytes())
    return BackendReply((ReplyTensor(0, DataType.INT32, step.shape, data),), {})


def check_tensors(config: ModelConfig) -> None:
    """Refuse a model that has not one INT32 vector INPUT and an OUTPUT like it.

    Raises:
        ConfigError: in Triton's words.
    """
    names = [one.name for one in config.inputs]
    expect(
        len(names) == 1, "model must have input 'INPUT' with vector shape, any length"
    )
    given = config.inputs[0]
    expect(
        len(given.dims) == 1,
        "model must have one input 'INPUT' with vector shape, any length",
    )
    expect(
        given.datatype is DataType.INT32,
        "model input must have TYPE_INT32 data-type",
    )
    expect(given.name == "INPUT", "model input must be named 'INPUT'")
    expect(
        len(config.outputs) == 1,
        "model must have one output 'OUTPUT' with vector shape, any length",
    )
    output = config.outputs[0]
    expect(
        output.dims == given.dims,
        "model must have output 'OUTPUT' with shape matching 'INPUT'",
    )
    expect(
        output.datatype is DataType.INT32,
        "model output must have TYPE_INT32 data-type",
    )
    expect(output.name == "OUTPUT", "model output must be named 'OUTPUT'")


def check_controls(config: ModelConfig, names: Sequence[str], message: str) -> None:
    """Refuse a model whose control inputs are not called ``names``, in any order.

    Raises:
        ConfigError: with ``message``.
    """
    batching = config.sequence_batching
    found = [] if batching is None else [one.name for one in batching.control_inputs]
    expect(sorted(found) == sorted(names), message)
