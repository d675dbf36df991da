"""Which optimization profile of a TensorRT engine takes a batch. Pure.

Source: the rules and messages of Triton's TensorRT backend.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from services.core.datatype import DataType
from services.core.errors import ConfigError, InvalidRequestError
from services.core.model_config import InstanceKind, ModelConfig
from services.worker.backend import FoundModel, FoundTensor, InstancePlace

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTensor:
    """An input or output of an engine.

    Attributes:
        name: In the engine.
        datatype: Of its elements.
        shape: Full; -1 where it varies.
        is_shape: Its values are shapes, on the host.
        is_linear: Its elements lie in C order.
    """

    name: str
    datatype: DataType
    shape: Shape
    is_shape: bool = False
    is_linear: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRange:
    """What a profile takes of one input, dimension by dimension."""

    least: Shape
    best: Shape
    most: Shape

    def problem(self, shape: Shape) -> str:
        """Return what is wrong with a shape; empty if nothing is."""
        if len(shape) != len(self.most):
            return (
                f"model expected {len(self.most)} dimensions but received"
                f" {len(shape)} dimensions"
            )
        for axis, (low, size, high) in enumerate(
            zip(self.least, shape, self.most, strict=True)
        ):
            if not low <= size <= high:
                return (
                    f"model expected the shape of dimension {axis} to be between"
                    f" {low} and {high} but received {size}"
                )
        return ""

    def distance(self, shape: Shape) -> int:
        """Return how far a shape is from what the profile is best at."""
        return sum(abs(a - b) for a, b in zip(self.best, shape, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One optimization profile: ranges by input."""

    index: int
    ranges: Mapping[str, ShapeRange]

    def problem(self, shapes: Mapping[str, Shape]) -> tuple[str, str] | None:
        """Return the first input that does not fit, and why."""
        for name, shape in shapes.items():
            problem = self.ranges[name].problem(shape)
            if problem:
                return name, problem
        return None

    def distance(self, shapes: Mapping[str, Shape]) -> int:
        """Return how far shapes that fit are from what the profile is best at."""
        return sum(self.ranges[name].distance(shape) for name, shape in shapes.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine says of itself; at least one profile."""

    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    profiles: tuple[Profile, ...]

    @property
    def max_batch_size(self) -> int:
        """The most rows that some profile takes; 0 if the engine does not batch."""
        if any(tensor.shape[:1] != (-1,) for tensor in (*self.inputs, *self.outputs)):
            return 0
        return most_rows(self.profiles)

    def found(self) -> FoundModel:
        """Return it as every backend tells it."""
        inputs, outputs = (
            tuple(
                FoundTensor(name=one.name, datatype=one.datatype, shape=one.shape)
                for one in tensors
            )
            for tensors in (self.inputs, self.outputs)
        )
        return FoundModel(inputs=inputs, outputs=outputs, max_rows=self.max_batch_size)


def most_rows(profiles: Sequence[Profile]) -> int:
    """Return the largest first dimension that one of ``profiles`` takes."""
    return max(
        min((one.most[0] for one in profile.ranges.values() if one.most), default=0)
        for profile in profiles
    )


def require_supported(config: ModelConfig, facts: EngineFacts) -> None:
    """Refuse an engine that cannot be run here.

    Raises:
        ConfigError: naming the tensor and why.
    """
    for tensor in (*facts.inputs, *facts.outputs):
        reason = ""
        if tensor.is_shape:
            reason = "is a shape tensor"
        elif not tensor.is_linear:
            reason = "has a non-linear IO format"
        if reason:
            message = (
                f"unable to load model '{config.name}', tensor '{tensor.name}' of the"
                f" engine {reason}, which Nereid does not support"
            )
            raise ConfigError(message)
    needed = {tensor.name for tensor in facts.inputs}
    optional = [one.name for one in config.inputs if one.optional]
    for name in optional:
        if name in needed:
            message = (
                f"unable to load model '{config.name}', input '{name}' is optional in"
                " the configuration, but an engine needs all its inputs"
            )
            raise ConfigError(message)


def profiles_of(
    config: ModelConfig, place: InstancePlace, facts: EngineFacts
) -> tuple[Profile, ...]:
    """Return the profiles of one instance: those its group names, or the first.

    Raises:
        ConfigError: it is no GPU instance, a profile does not exist, or none takes
            the configured max_batch_size.
    """
    groups = config.instance_groups
    group = groups[place.group] if place.group < len(groups) else None
    if group is not None and group.kind in (InstanceKind.CPU, InstanceKind.MODEL):
        message = (
            f"unable to load model '{config.name}', TensorRT backend supports only GPU"
            " device"
        )
        raise ConfigError(message)
    named = () if group is None else group.profiles
    indices = list(dict.fromkeys(int(name) for name in named)) or [0]
    for index in indices:
        if index >= len(facts.profiles):
            message = (
                f"Can not set the specified optimization profile {index} for"
                f" {place.name}. Expected optimization profile index range"
                f" 0-{len(facts.profiles) - 1}"
            )
            raise ConfigError(message)
    profiles = tuple(facts.profiles[index] for index in indices)
    most = most_rows(profiles)
    if config.max_batch_size > most:
        message = (
            f"unexpected configuration maximum batch size {config.max_batch_size} for"
            f" '{place.name}', model maximum is {most}"
        )
        raise ConfigError(message)
    return profiles


def choose_profile(
    profiles: Sequence[Profile], shapes: Mapping[str, Shape], instance: str
) -> Profile:
    """Return the profile that takes ``shapes`` and is best at what is nearest to them.

    Args:
        profiles: Of the instance, at least one.
        shapes: Of all inputs, rows included.
        instance: For messages.

    Raises:
        InvalidRequestError: none takes them; with the first profile's reason.
    """
    fitting = [one for one in profiles if one.problem(shapes) is None]
    if fitting:
        return min(fitting, key=lambda one: one.distance(shapes))
    name, reason = profiles[0].problem(shapes) or ("", "")
    message = (
        f"request specifies invalid shape for input '{name}' for {instance}. Error"
        f" details: {reason}"
    )
    if len(profiles) > 1:
        tried = ", ".join(str(one.index) for one in profiles)
        message += f" (no optimization profile among {tried} takes it)"
    raise InvalidRequestError(message)
