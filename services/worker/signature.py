"""What goes into a model version and what comes out, as this worker needs it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from services.core.datatype import DataType
from services.core.errors import BackendError
from services.core.model_config import ModelConfig, ModelInput, ModelOutput
from services.core.sequence_state import NUMBER_INPUT

WILDCARD: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One input or output.

    Attributes:
        name: As clients call it.
        datatype: Of its elements.
        dims: The client's shape of one row (of everything, if the model does
            not batch); -1 where it varies.
        reshape: What the model sees instead of ``dims``, if not the same.
        optional: Whether a request may leave it out; inputs only.
        labels: Of the elements of a row; outputs that classify only.
    """

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    labels: tuple[str, ...] = ()

    @property
    def model_dims(self) -> tuple[int, ...]:
        """The shape of one row on the model's side."""
        return self.dims if self.reshape is None else self.reshape

    def to_model(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the model's shape of a row whose client's shape is ``shape``."""
        if self.reshape is None:
            return shape
        return _reshaped(shape, self.dims, self.reshape)

    def to_client(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the client's shape of a row whose model's shape is ``shape``.

        Raises:
            BackendError: the model produced another shape than was declared.
        """
        if self.reshape is None:
            return shape
        fits = len(shape) == len(self.reshape) and all(
            declared in (WILDCARD, actual)
            for declared, actual in zip(self.reshape, shape, strict=True)
        )
        if not fits:
            message = (
                f"output '{self.name}': the model produced {list(shape)} where the"
                f" configuration's reshape says {list(self.reshape)}"
            )
            raise BackendError(message)
        return _reshaped(shape, self.reshape, self.dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The tensors of one model version.

    Attributes:
        model_name: For replies and messages.
        model_version: For replies.
        max_batch_size: Rows at most; 0: the model does not batch, shapes have
            no row dimension of ours, and a batch is one request.
        inputs: In the configuration's order.
        outputs: In the configuration's order.
    """

    model_name: str
    model_version: int
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def is_batched(self) -> bool:
        """Whether the first dimension of every shape counts rows."""
        return self.max_batch_size > 0

    @classmethod
    def from_config(
        cls,
        config: ModelConfig,
        version: int,
        labels: Mapping[str, tuple[str, ...]] | None = None,
    ) -> "Signature":
        """Take from ``config`` what execution needs; ``labels`` by output name."""
        labels = labels or {}
        return cls(
            model_name=config.name,
            model_version=version,
            max_batch_size=config.max_batch_size,
            inputs=(*input_specs(config), *_sequence_number(config)),
            outputs=tuple(
                replace(_spec(tensor), labels=labels.get(tensor.name, ()))
                for tensor in config.outputs
            ),
        )


def input_specs(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """Return all that a request tells a model: its inputs, then its control inputs."""
    declared = (
        replace(
            _spec(tensor),
            optional=tensor.optional or tensor not in config.client_inputs,
        )
        for tensor in config.inputs
    )
    return (*declared, *_controls(config))


def state_specs(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """Return the inputs by which a model gets its states back; no request has them."""
    return tuple(
        TensorSpec(name=state.input_name, datatype=state.datatype, dims=state.dims)
        for state in config.states
    )


def state_output_specs(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """Return the outputs by which a model gives its states away."""
    return tuple(
        TensorSpec(name=state.output_name, datatype=state.datatype, dims=state.dims)
        for state in config.states
    )


def output_names(config: ModelConfig) -> tuple[str, ...]:
    """Return all that a model puts out: its outputs, then states that are none."""
    names = [tensor.name for tensor in config.outputs]
    states = [state.output_name for state in config.states]
    return (*names, *(name for name in states if name not in names))


def _controls(config: ModelConfig) -> list[TensorSpec]:
    """Return the inputs by which a model is told of its sequences; see the router."""
    if config.sequence_batching is None:
        return []
    return [
        TensorSpec(
            name=control_input.name, datatype=control.datatype, dims=(1,), optional=True
        )
        for control_input in config.sequence_batching.control_inputs
        for control in control_input.controls[:1]
    ]


def _sequence_number(config: ModelConfig) -> list[TensorSpec]:
    """Return the input by which the router says whose state a request goes on with."""
    if not config.states:
        return []
    number = TensorSpec(
        name=NUMBER_INPUT, datatype=DataType.UINT64, dims=(1,), optional=True
    )
    return [number]


def _spec(tensor: ModelInput | ModelOutput) -> TensorSpec:
    return TensorSpec(
        name=tensor.name,
        datatype=tensor.datatype,
        dims=tuple(tensor.dims),
        reshape=None if tensor.reshape is None else tuple(tensor.reshape),
    )


def element_count(shape: Sequence[int]) -> int:
    """Return how many elements a tensor of ``shape`` has; 1 for ()."""
    return math.prod(shape)


def _reshaped(
    actual: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...]
) -> tuple[int, ...]:
    """Return ``target`` with its wildcards filled from ``actual``, in order.

    Source:
        Triton's model configuration: the n-th -1 of a reshape stands for the
        n-th -1 of the dims.
    """
    varying = iter(
        size for size, dim in zip(actual, source, strict=True) if dim == WILDCARD
    )
    return tuple(next(varying) if dim == WILDCARD else dim for dim in target)
