"""Whether an ensemble is a graph that can run.

Source: the rules are those of Triton's ValidateEnsembleSchedulingConfig and of its
check of an ensemble against its members.
"""

from collections.abc import Mapping

from services.control.ensemble_tensors import require_tensors
from services.control.model_registry import Member
from services.core.errors import ConfigError
from services.core.model_config import (
    ENSEMBLE_PLATFORM,
    EnsembleStep,
    FieldError,
    ModelConfig,
    OptimizationPolicy,
)

_STEPS = ("ensemble_scheduling", "step")


def require_ensemble(config: ModelConfig) -> None:
    """Refuse an ensemble that cannot produce its outputs.

    Args:
        config: One whose ``ensemble`` is set.

    Raises:
        FieldError: a field an ensemble does not have, or a flaw of the graph.
    """
    name, ensemble = config.name, config.ensemble
    if config.platform != ENSEMBLE_PLATFORM:
        msg = (
            f"ensemble scheduling cannot be set for model '{name}' whose platform is "
            f"not {ENSEMBLE_PLATFORM}"
        )
        raise FieldError(msg, "platform")
    if config.instance_groups:
        msg = f"instance group should not be specified for ensemble '{name}'"
        raise FieldError(msg, "instance_group")
    if config.optimization != OptimizationPolicy():
        msg = f"optimization should not be specified for ensemble '{name}'"
        raise FieldError(msg, "optimization")
    if config.warmups:
        msg = f"model_warmup can not be specified for ensemble '{name}'"
        raise FieldError(msg, "model_warmup")
    if ensemble is not None:
        _require_single_writers(config, ensemble.steps)
        _require_all_used(config, ensemble.steps)
        _require_written(config, ensemble.steps)


def require_members(config: ModelConfig, members: Mapping[Member, ModelConfig]) -> None:
    """Refuse an ensemble whose members cannot take its batches.

    Args:
        config: An ensemble's.
        members: The completed configurations of models that can be called, by name
            and the version that a step asks for.

    Raises:
        ConfigError: a step's model is not among ``members``, or takes smaller
            batches than the ensemble, or takes another tensor than it is given.
    """
    steps = config.ensemble.steps if config.ensemble is not None else ()
    for step in steps:
        member = members.get((step.model_name, step.model_version))
        if member is None:
            msg = (
                f"ensemble {config.name} contains models that are not available or "
                f"ambiguous: {step.model_name}"
            )
            raise ConfigError(msg)
        if member.max_batch_size < config.max_batch_size:
            msg = (
                f"ensemble {config.name} allows maximum batch size "
                f"{config.max_batch_size}, but it contains model {member.name} which "
                f"only allows maximum batch size to be {member.max_batch_size}"
            )
            raise ConfigError(msg)
    require_tensors(config, members)


def _require_single_writers(
    config: ModelConfig, steps: tuple[EnsembleStep, ...]
) -> None:
    written = {tensor.name for tensor in config.inputs}
    for i, step in enumerate(steps):
        for output, tensor in step.output_map.items():
            if tensor in written:
                msg = (
                    f"ensemble tensor '{tensor}' is written more than once in "
                    f"ensemble '{config.name}'"
                )
                raise FieldError(msg, *_STEPS, i, "output_map", output)
            written.add(tensor)


def _require_all_used(config: ModelConfig, steps: tuple[EnsembleStep, ...]) -> None:
    read = {tensor for step in steps for tensor in step.input_map.values()}
    for i, declared in enumerate(config.inputs):
        if declared.name not in read:
            msg = (
                f"ensemble input '{declared.name}' for ensemble {config.name} is not "
                "used"
            )
            raise FieldError(msg, "input", i)
    answered = {tensor.name for tensor in config.outputs}
    for i, step in enumerate(steps):
        for output, tensor in step.output_map.items():
            if tensor not in read | answered:
                msg = (
                    f"ensemble tensor '{tensor}' is unused in ensemble '{config.name}'"
                )
                raise FieldError(msg, *_STEPS, i, "output_map", output)


def _require_written(config: ModelConfig, steps: tuple[EnsembleStep, ...]) -> None:
    known = {tensor.name for tensor in config.inputs}
    waiting = dict(enumerate(steps))
    while ready := [
        i for i, step in waiting.items() if known.issuperset(step.input_map.values())
    ]:
        for i in ready:
            known.update(waiting.pop(i).output_map.values())
    for i, step in waiting.items():
        for name, tensor in step.input_map.items():
            if tensor not in known:
                msg = (
                    f"ensemble tensor '{tensor}' is not connected in ensemble "
                    f"'{config.name}'"
                )
                raise FieldError(msg, *_STEPS, i, "input_map", name)
    for i, declared in enumerate(config.outputs):
        if declared.name not in known:
            msg = (
                f"output '{declared.name}' for ensemble '{config.name}' is not written"
            )
            raise FieldError(msg, "output", i)
