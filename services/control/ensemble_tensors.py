"""Whether the tensors of an ensemble mean the same to all its members. Pure.

Source: Triton compares data types and shapes of every tensor of the graph when an
ensemble is loaded; variable dimensions are left to the request.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from services.control.model_registry import Member
from services.core.errors import ConfigError
from services.core.model_config import (
    EnsembleStep,
    ModelConfig,
    ModelInput,
    ModelOutput,
)
from services.core.model_config_fields import VARIABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """What one model takes an ensemble's tensor for."""

    tensor: str
    model: str
    config_name: str
    dims: tuple[int, ...]
    batches: bool

    @property
    def full_dims(self) -> tuple[int, ...]:
        return (VARIABLE, *self.dims) if self.batches else self.dims


def require_tensors(config: ModelConfig, members: Mapping[Member, ModelConfig]) -> None:
    """Refuse an ensemble whose members disagree about a tensor.

    Args:
        config: An ensemble's.
        members: The completed configuration of each step's model.

    Raises:
        ConfigError: a step names a tensor its model does not have, leaves out one
            that its model needs, or two models disagree about type or shape.
    """
    steps = config.ensemble.steps if config.ensemble is not None else ()
    uses: dict[str, list[_Use]] = {}
    declared: Iterator[ModelInput | ModelOutput] = iter(
        (*config.inputs, *config.outputs)
    )
    for tensor in declared:
        uses.setdefault(tensor.name, []).append(_use(tensor.name, tensor, config))
    for step in steps:
        member = members[step.model_name, step.model_version]
        for use in _uses_of(step, member, config.name):
            uses.setdefault(use.tensor, []).append(use)
    for name, those in uses.items():
        for one, other in pairwise(those):
            _require_equal(
                one, other, f"in ensemble {config.name}, ensemble tensor {name}: "
            )


def _uses_of(step: EnsembleStep, member: ModelConfig, ensemble: str) -> Iterator[_Use]:
    inputs = {tensor.name: tensor for tensor in member.inputs}
    outputs = {tensor.name: tensor for tensor in member.outputs}
    sides: tuple[
        tuple[str, Mapping[str, str], Mapping[str, ModelInput | ModelOutput]], ...
    ] = (("input", step.input_map, inputs), ("output", step.output_map, outputs))
    for side, mapped, tensors in sides:
        for name, tensor in mapped.items():
            if name not in tensors:
                msg = (
                    f"in ensemble {ensemble}, ensemble tensor {tensor} is mapped to "
                    f"non-existing {side} {name} of model {member.name}"
                )
                raise ConfigError(msg)
            yield _use(tensor, tensors[name], member)
    for name, needed in inputs.items():
        if not needed.optional and name not in step.input_map:
            msg = (
                f"in ensemble {ensemble}, input {name} of model {member.name} is "
                "required and not mapped"
            )
            raise ConfigError(msg)


def _use(tensor: str, declared: ModelInput | ModelOutput, config: ModelConfig) -> _Use:
    return _Use(
        tensor=tensor,
        model=config.name,
        config_name=declared.datatype.config_name,
        dims=declared.dims,
        batches=config.max_batch_size > 0,
    )


def _require_equal(one: _Use, other: _Use, where: str) -> None:
    if one.config_name != other.config_name:
        msg = (
            f"{where}inconsistent data type: {one.config_name} is inferred from model "
            f"{one.model} while {other.config_name} is inferred from model "
            f"{other.model}"
        )
        raise ConfigError(msg)
    if _fits(one.full_dims, other.full_dims):
        return
    msg = (
        f"{where}inconsistent shape: {_text(one.full_dims)} is inferred from model "
        f"{one.model} while {_text(other.full_dims)} is inferred from model "
        f"{other.model}"
    )
    raise ConfigError(msg)


def _fits(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == len(other) and all(
        a == b or VARIABLE in (a, b) for a, b in zip(one, other, strict=True)
    )


def _text(dims: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, dims))}]"
