"""ONNX Runtime's options from a model configuration."""

from typing import Any

import pytest

from services.core.errors import ConfigError
from services.core.model_config import Accelerator, InstanceKind, OptimizationPolicy
from services.worker.backends.onnxruntime_options import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    OPENVINO_PROVIDER,
    TENSORRT_PROVIDER,
    providers,
    session_settings,
)
from tests.unit.worker.onnx_models import config

EVERYTHING = (CPU_PROVIDER, CUDA_PROVIDER, OPENVINO_PROVIDER, TENSORRT_PROVIDER)


def configured(**more: Any) -> Any:  # noqa: ANN401 - any field of ModelConfig
    return config({"X": [1]}, {"Y": [1]}, **more)


def with_parameters(**parameters: str) -> Any:  # noqa: ANN401
    return configured(parameters=parameters)


def gpu_accelerated(name: str, **parameters: str) -> Any:  # noqa: ANN401
    accelerator = Accelerator(name=name, parameters=parameters)
    return configured(optimization=OptimizationPolicy(gpu_accelerators=(accelerator,)))


def test_by_default_nothing_spins_and_everything_is_optimised() -> None:
    settings = session_settings(with_parameters())
    assert settings.intra_op_threads == settings.inter_op_threads == 0
    assert not settings.is_parallel
    assert settings.graph_level == "all"
    assert settings.has_arena
    assert settings.has_pattern
    assert settings.entries == {
        "session.intra_op.allow_spinning": "0",
        "session.inter_op.allow_spinning": "0",
    }
    assert settings.run_entries == {}


def test_the_configuration_may_ask_for_spinning() -> None:
    parameters = {"session.intra_op.allow_spinning": "1"}
    settings = session_settings(configured(parameters=parameters))
    assert settings.entries["session.intra_op.allow_spinning"] == "1"


def test_parameters_of_others_are_left_alone() -> None:
    settings = session_settings(with_parameters(TRITON="1", padding="on"))
    assert set(settings.entries) == {
        "session.intra_op.allow_spinning",
        "session.inter_op.allow_spinning",
    }


@pytest.mark.parametrize(
    ("level", "name"),
    [(None, "all"), (0, "all"), (-1, "basic"), (1, "extended"), (2, "disabled")],
)
def test_graph_levels_are_tritons(level: int | None, name: str) -> None:
    of = configured(optimization=OptimizationPolicy(graph_level=level))
    assert session_settings(of).graph_level == name


@pytest.mark.parametrize("text", ["many", "-1", "1.5"])
def test_a_number_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=f"'intra_op_thread_count'.* is '{text}'"):
        session_settings(with_parameters(intra_op_thread_count=text))


def test_a_cpu_instance_uses_the_cpu_alone() -> None:
    found = providers(with_parameters(), InstanceKind.CPU, EVERYTHING)
    assert found == [(CPU_PROVIDER, {})]


def test_a_gpu_instance_uses_the_only_visible_gpu_first() -> None:
    found = providers(with_parameters(), InstanceKind.GPU, EVERYTHING)
    assert found == [(CUDA_PROVIDER, {"device_id": "0"}), (CPU_PROVIDER, {})]


def test_cuda_parameters_become_the_providers_words() -> None:
    of = with_parameters(
        cudnn_conv_algo_search="1", arena_extend_strategy="1", gpu_mem_limit="1024"
    )
    (_, options), _ = providers(of, InstanceKind.GPU, EVERYTHING)
    assert options == {
        "device_id": "0",
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        "gpu_mem_limit": "1024",
    }


def test_a_cuda_number_without_a_word_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected a number, 0\.\.2"):
        providers(
            with_parameters(cudnn_conv_algo_search="3"), InstanceKind.GPU, EVERYTHING
        )


def test_tensorrt_comes_before_cuda_with_its_own_names() -> None:
    of = gpu_accelerated(
        "tensorrt", precision_mode="FP16", max_workspace_size_bytes="9"
    )
    found = providers(of, InstanceKind.GPU, EVERYTHING)
    assert [name for name, _ in found] == [
        TENSORRT_PROVIDER,
        CUDA_PROVIDER,
        CPU_PROVIDER,
    ]
    assert found[0][1] == {
        "device_id": "0",
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "9",
    }


def test_options_of_the_cuda_accelerator_win() -> None:
    found = providers(
        gpu_accelerated("cuda", gpu_mem_limit="5"), InstanceKind.GPU, EVERYTHING
    )
    assert found[0] == (CUDA_PROVIDER, {"device_id": "0", "gpu_mem_limit": "5"})
    assert len(found) == 2


@pytest.mark.parametrize(
    ("of", "available", "text"),
    [
        (with_parameters(), (CPU_PROVIDER,), "needs ONNX Runtime's CUDAExecution"),
        (gpu_accelerated("tensorrt"), (CPU_PROVIDER, CUDA_PROVIDER), "Tensorrt"),
        (gpu_accelerated("warp"), EVERYTHING, "unknown execution accelerator 'warp'"),
        (
            gpu_accelerated("tensorrt", precision_mode="FP8"),
            EVERYTHING,
            "unsupported precision mode 'FP8'",
        ),
    ],
)
def test_what_is_not_there_is_refused_not_ignored(
    of: Any,  # noqa: ANN401
    available: tuple[str, ...],
    text: str,
) -> None:
    with pytest.raises(ConfigError, match=text):
        providers(of, InstanceKind.GPU, available)
