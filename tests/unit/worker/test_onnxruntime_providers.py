"""Which providers execute an ONNX model, and with which options."""

from typing import Any

import pytest

from services.core.errors import ConfigError
from services.core.model_config import Accelerator, InstanceKind, OptimizationPolicy
from services.worker.backends.onnxruntime_providers import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    OPENVINO_PROVIDER,
    TENSORRT_PROVIDER,
    idle_providers,
    providers,
    unused_accelerators,
)
from tests.unit.worker.onnx_models import config

EVERYTHING = (CPU_PROVIDER, CUDA_PROVIDER, OPENVINO_PROVIDER, TENSORRT_PROVIDER)
CPU, GPU = InstanceKind.CPU, InstanceKind.GPU


def with_parameters(**parameters: str) -> Any:  # noqa: ANN401
    return config({"X": [1]}, {"Y": [1]}, parameters=parameters)


def accelerated(kind: InstanceKind, name: str, **parameters: str) -> Any:  # noqa: ANN401
    accelerator = (Accelerator(name=name, parameters=parameters),)
    policy = (
        OptimizationPolicy(gpu_accelerators=accelerator)
        if kind is GPU
        else OptimizationPolicy(cpu_accelerators=accelerator)
    )
    return config({"X": [1]}, {"Y": [1]}, optimization=policy)


def options_of(name: str, **parameters: str) -> dict[str, str]:
    """Return the first provider's options with a GPU accelerator."""
    return providers(accelerated(GPU, name, **parameters), GPU, EVERYTHING)[0][1]


def test_a_cpu_instance_uses_the_cpu_alone() -> None:
    assert providers(with_parameters(), CPU, EVERYTHING) == [(CPU_PROVIDER, {})]


def test_a_gpu_instance_uses_the_only_visible_gpu_first() -> None:
    found = providers(with_parameters(), GPU, EVERYTHING)
    assert found == [(CUDA_PROVIDER, {"device_id": "0"}), (CPU_PROVIDER, {})]


def test_openvino_comes_before_the_cpu() -> None:
    found = providers(accelerated(CPU, "openvino", num_streams="2"), CPU, EVERYTHING)
    assert found == [
        (OPENVINO_PROVIDER, {"device_type": "CPU", "num_streams": "2"}),
        (CPU_PROVIDER, {}),
    ]


def test_cuda_parameters_become_the_providers_words() -> None:
    of = with_parameters(
        cudnn_conv_algo_search="1",
        arena_extend_strategy="1",
        gpu_mem_limit="18446744073709551615",
        do_copy_in_default_stream="false",
    )
    (_, options), _ = providers(of, GPU, EVERYTHING)
    assert options == {
        "device_id": "0",
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        "gpu_mem_limit": "18446744073709551615",
        "do_copy_in_default_stream": "0",
    }


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("cudnn_conv_algo_search", "3", r"a number, 0\.\.2"),
        ("arena_extend_strategy", "2", r"a number, 0\.\.1"),
        ("gpu_mem_limit", "-1", "a number, 0 or more"),
        ("gpu_mem_limit", "1 GB", "a number, 0 or more"),
        ("do_copy_in_default_stream", "2", "1 or true, 0 or false"),
    ],
)
def test_a_wrong_cuda_parameter_is_refused_by_name(
    key: str, text: str, expected: str
) -> None:
    of = with_parameters(**{key: text})
    with pytest.raises(ConfigError, match=f"'{key}' .* is '{text}': .* {expected}"):
        providers(of, GPU, EVERYTHING)


def test_tensorrt_comes_before_cuda_with_its_own_names() -> None:
    of = accelerated(
        GPU,
        "tensorrt",
        precision_mode="FP16",
        max_workspace_size_bytes="9",
        trt_engine_cache_enable="true",
        int8_use_native_calibration_table="0",
        trt_engine_cache_path="/cache",
        trt_auxiliary_streams="-1",
        trt_newer_than_this="x",
    )
    found = providers(of, GPU, EVERYTHING)
    assert [name for name, _ in found] == [
        TENSORRT_PROVIDER,
        CUDA_PROVIDER,
        CPU_PROVIDER,
    ]
    assert found[0][1] == {
        "device_id": "0",
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "9",
        "trt_engine_cache_enable": "1",
        "trt_int8_use_native_calibration_table": "0",
        "trt_engine_cache_path": "/cache",
        "trt_auxiliary_streams": "-1",
        "trt_newer_than_this": "x",
    }


@pytest.mark.parametrize(
    ("mode", "option"),
    [
        ("FP32", {}),
        ("BF16", {"trt_bf16_enable": "1"}),
        ("INT8", {"trt_int8_enable": "1"}),
    ],
)
def test_every_precision_has_its_switch(mode: str, option: dict[str, str]) -> None:
    assert options_of("tensorrt", precision_mode=mode) == {"device_id": "0", **option}


@pytest.mark.parametrize(
    ("key", "text", "error"),
    [
        ("precision_mode", "FP8", "'precision_mode' .* is 'FP8': expected one of FP32"),
        ("max_workspace_size_bytes", "1G", "'max_workspace_size_bytes' .* is '1G'"),
        ("trt_dla_enable", "2", "'trt_dla_enable' of execution acc.* is '2'"),
        ("workspace", "1", "unknown parameter 'workspace' is provided for TensorRT"),
    ],
)
def test_a_wrong_tensorrt_parameter_is_refused_by_name(
    key: str, text: str, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        options_of("tensorrt", **{key: text})


def test_options_of_the_cuda_accelerator_win() -> None:
    accelerator = Accelerator(
        name="cuda",
        parameters={"gpu_mem_limit": "5", "use_ep_level_unified_stream": "true"},
    )
    of = config(
        {"X": [1]},
        {"Y": [1]},
        parameters={"gpu_mem_limit": "4"},
        optimization=OptimizationPolicy(gpu_accelerators=(accelerator,)),
    )
    found = providers(of, GPU, EVERYTHING)
    assert found == [
        (
            CUDA_PROVIDER,
            {
                "device_id": "0",
                "gpu_mem_limit": "5",
                "use_ep_level_unified_stream": "1",
            },
        ),
        (CPU_PROVIDER, {}),
    ]


def test_no_accelerator_leads_to_a_device_that_is_not_visible() -> None:
    for name in ("cuda", "tensorrt"):
        with_device = {"device_id": "3"} if name == "cuda" else {}
        assert options_of(name, **with_device)["device_id"] == "0"


@pytest.mark.parametrize(
    ("of", "kind", "available", "text"),
    [
        (with_parameters(), GPU, (CPU_PROVIDER,), "needs ONNX Runtime's CUDAExecution"),
        (
            accelerated(GPU, "tensorrt"),
            GPU,
            (CPU_PROVIDER, CUDA_PROVIDER),
            "needs ONNX Runtime's Tensorrt",
        ),
        (accelerated(GPU, "warp"), GPU, EVERYTHING, "unknown Execution Accelerator"),
        (accelerated(CPU, "openvino"), CPU, (CPU_PROVIDER,), "needs .* OpenVINO"),
        (accelerated(CPU, "cuda"), CPU, EVERYTHING, "unknown Execution Accelerator"),
    ],
)
def test_what_is_not_there_is_refused_not_ignored(
    of: Any,  # noqa: ANN401
    kind: InstanceKind,
    available: tuple[str, ...],
    text: str,
) -> None:
    with pytest.raises(ConfigError, match=text):
        providers(of, kind, available)


def test_accelerators_without_an_instance_of_their_kind_are_unused() -> None:
    of = accelerated(GPU, "tensorrt")
    assert unused_accelerators(of, [CPU]) == ("tensorrt",)
    assert unused_accelerators(of, [CPU, GPU]) == ()
    assert unused_accelerators(accelerated(CPU, "openvino"), [GPU]) == ("openvino",)


def test_a_provider_that_got_no_node_is_idle() -> None:
    chosen = providers(accelerated(GPU, "tensorrt"), GPU, EVERYTHING)
    nodes = {CUDA_PROVIDER: 3, CPU_PROVIDER: 1}
    assert idle_providers(chosen, nodes) == (TENSORRT_PROVIDER,)
    assert idle_providers(chosen, {TENSORRT_PROVIDER: 1, CUDA_PROVIDER: 1}) == ()
