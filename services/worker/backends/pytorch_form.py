"""What the forms have in common that a PyTorch model is saved in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from services.core.model_config import ModelConfig, ModelOutput
from services.worker.backend import FoundModel
from services.worker.signature import (
    TensorSpec,
    input_specs,
    state_output_specs,
    state_specs,
)

Values: TypeAlias = Mapping[str, Any]
"""By the configuration's names: a torch.Tensor each, or a list of str for BYTES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundModel:
    """A model that goes by the configuration's names.

    Attributes:
        call: Runs it. An optional input may be missing; outputs may be more than the
            configuration has.
        written_inputs: Those that it may write to.
    """

    call: Callable[[Values], Values]
    written_inputs: frozenset[str]


def model_inputs(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """Return all that a model is told: also of sequences, and of ragged batches."""
    made = (
        TensorSpec(name=name, datatype=batch_input.datatype, dims=(-1,))
        for batch_input in config.batch_inputs
        for name in batch_input.target_names
    )
    return (*input_specs(config), *state_specs(config), *made)


def model_outputs(config: ModelConfig) -> tuple[ModelOutput | TensorSpec, ...]:
    """Return all that a model gives: its outputs, then states that are none."""
    names = {output.name for output in config.outputs}
    states = (spec for spec in state_output_specs(config) if spec.name not in names)
    return (*config.outputs, *states)


class ModelForm(Protocol):
    """A loaded model."""

    @property
    def found(self) -> FoundModel | None:
        """What the file says about its tensors; None if it does not tell.

        Raises:
            ConfigError: one has a datatype that the protocol lacks.
        """
        ...

    @property
    def input_count(self) -> int:
        """How many tensors it takes, as far as that is fixed."""
        ...

    def bind(self, config: ModelConfig) -> BoundModel:
        """Return the model by the names that ``config`` has for its tensors.

        Raises:
            ConfigError: file and configuration contradict each other.
        """
        ...
