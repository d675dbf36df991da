"""PyTorch's options in a model configuration."""

import pytest

from services.core.errors import ConfigError
from services.core.model_config import ModelConfig
from services.worker.backends.pytorch_options import TorchSettings, torch_settings


def settings(**parameters: str) -> TorchSettings:
    return torch_settings(ModelConfig(name="m", parameters=parameters))


def test_without_parameters_all_is_as_with_triton() -> None:
    assert settings() == TorchSettings(
        inference_mode=True,
        optimized_execution=True,
        jit_executor=None,
        jit_profiling=None,
        tensor_fuser=None,
        cudnn=True,
        weight_sharing=False,
        cache_cleaning=False,
        intra_op_threads=0,
        inter_op_threads=0,
    )


def test_parameters_have_tritons_names() -> None:
    assert settings(
        INFERENCE_MODE="false",
        DISABLE_OPTIMIZED_EXECUTION="true",
        ENABLE_JIT_EXECUTOR="0",
        ENABLE_JIT_PROFILING="False",
        ENABLE_TENSOR_FUSER="1",
        DISABLE_CUDNN="TRUE",
        ENABLE_WEIGHT_SHARING="true",
        ENABLE_CACHE_CLEANING=" true ",
        INTRA_OP_THREAD_COUNT="3",
        INTER_OP_THREAD_COUNT="2",
    ) == TorchSettings(
        inference_mode=False,
        optimized_execution=False,
        jit_executor=False,
        jit_profiling=False,
        tensor_fuser=True,
        cudnn=False,
        weight_sharing=True,
        cache_cleaning=True,
        intra_op_threads=3,
        inter_op_threads=2,
    )


def test_thread_counts_have_another_name_too() -> None:
    found = settings(NUM_THREADS="4", NUM_INTEROP_THREADS="1")
    assert (found.intra_op_threads, found.inter_op_threads) == (4, 1)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("INFERENCE_MODE", "yes", "true or false"),
        ("ENABLE_JIT_EXECUTOR", "", "true or false"),
        ("INTRA_OP_THREAD_COUNT", "-1", "a number, 0 or more"),
        ("NUM_THREADS", "two", "a number, 0 or more"),
    ],
)
def test_a_value_that_is_none_is_refused_by_name(
    key: str, value: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**{key: value})
    assert str(caught.value) == (
        f"parameter '{key}' of model 'm' is '{value}': expected {expected}"
    )
