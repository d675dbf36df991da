"""Configurations of ensembles that the router's tests share."""

from collections.abc import Mapping

from services.core.datatype import DataType
from services.core.model_config import (
    Ensemble,
    EnsembleStep,
    ModelConfig,
    ModelInput,
    ModelOutput,
)


def step(
    model: str,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    version: int | None = None,
) -> EnsembleStep:
    return EnsembleStep(
        model_name=model, model_version=version, input_map=inputs, output_map=outputs
    )


def ensemble(
    *steps: EnsembleStep,
    inputs: str = "A",
    outputs: str = "Z",
    optional: str = "",
    name: str = "ens",
    cached: bool = False,
) -> ModelConfig:
    """Return an ensemble of INT32[16] tensors whose names are single letters."""
    return ModelConfig(
        name=name,
        platform="ensemble",
        max_batch_size=8,
        inputs=tuple(
            ModelInput(
                name=each,
                datatype=DataType.INT32,
                dims=(16,),
                optional=each in optional,
            )
            for each in inputs
        ),
        outputs=tuple(
            ModelOutput(name=each, datatype=DataType.INT32, dims=(16,))
            for each in outputs
        ),
        ensemble=Ensemble(steps=steps),
        response_cache_enabled=cached,
    )


DIAMOND = ensemble(
    # Declared backwards: names decide, not the order.
    step("simple", {"INPUT0": "L", "INPUT1": "R"}, {"OUTPUT0": "Z"}),
    step("right", {"INPUT0": "T"}, {"OUTPUT0": "R"}),
    step("left", {"INPUT0": "T"}, {"OUTPUT0": "L"}),
    step("top", {"INPUT0": "A"}, {"OUTPUT0": "T"}),
)
