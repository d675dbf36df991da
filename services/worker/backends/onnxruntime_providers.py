"""What executes the nodes of an ONNX model: execution providers and their options.

Source:
    The accelerators and the deprecated CUDA parameters of Triton's ONNX Runtime
    backend, by the names in its README.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

from services.core.errors import ConfigError
from services.core.model_config import Accelerator, InstanceKind, ModelConfig
from services.worker.backends.parameters import Parameters

CPU_PROVIDER: Final = "CPUExecutionProvider"
CUDA_PROVIDER: Final = "CUDAExecutionProvider"
TENSORRT_PROVIDER: Final = "TensorrtExecutionProvider"
OPENVINO_PROVIDER: Final = "OpenVINOExecutionProvider"

Provider: TypeAlias = tuple[str, dict[str, str]]

_CPU_ACCELERATORS: Final[Mapping[str, str]] = {"openvino": OPENVINO_PROVIDER}
_GPU_ACCELERATORS: Final[Mapping[str, str]] = {
    "tensorrt": TENSORRT_PROVIDER,
    "cuda": CUDA_PROVIDER,
}

# The model's parameters that are options of CUDA: a number becomes a word.
_CUDA_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
}
_CUDA_NUMBERS: Final = ("gpu_mem_limit",)
_CUDA_SWITCHES: Final = (
    "do_copy_in_default_stream",
    "use_ep_level_unified_stream",
    "cudnn_conv_use_max_workspace",
)

_TENSORRT_NAMES: Final[Mapping[str, str]] = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_TENSORRT_NUMBERS: Final = {
    "max_workspace_size_bytes": 0,
    "trt_auxiliary_streams": -1,
    "trt_builder_optimization_level": 0,
    "trt_dla_core": 0,
    "trt_ep_context_embed_mode": 0,
    "trt_max_partition_iterations": 0,
    "trt_min_subgraph_size": 0,
}
_TENSORRT_SWITCHES: Final = (
    "int8_use_native_calibration_table",
    "trt_build_heuristics_enable",
    "trt_context_memory_sharing_enable",
    "trt_cuda_graph_enable",
    "trt_detailed_build_log",
    "trt_dla_enable",
    "trt_dump_ep_context_model",
    "trt_dump_subgraphs",
    "trt_engine_cache_enable",
    "trt_force_sequential_engine_build",
    "trt_force_timing_cache",
    "trt_layer_norm_fp32_fallback",
    "trt_sparsity_enable",
    "trt_timing_cache_enable",
)
_PRECISION: Final = "precision_mode"
_PRECISIONS: Final[Mapping[str, str]] = {
    "FP32": "",
    "FP16": "trt_fp16_enable",
    "BF16": "trt_bf16_enable",
    "INT8": "trt_int8_enable",
}


def providers(
    config: ModelConfig, kind: InstanceKind, available: Collection[str]
) -> list[Provider]:
    """Return the execution providers for instances of ``kind``, best first.

    Args:
        config: Names accelerators and their parameters.
        kind: CPU or GPU; the device a GPU process sees is number 0.
        available: What this build of ONNX Runtime has.

    Raises:
        ConfigError: an accelerator or a parameter is unknown or wrong, or what the
            configuration asks for is not available.
    """
    chosen = _on_gpu(config) if kind is InstanceKind.GPU else _on_cpu(config)
    chosen.append((CPU_PROVIDER, {}))
    for name, _ in chosen:
        if name not in available:
            message = (
                f"model '{config.name}' needs ONNX Runtime's {name}, which this"
                f" worker does not have (it has {', '.join(available)})"
            )
            raise ConfigError(message)
    return chosen


def unused_accelerators(
    config: ModelConfig, kinds: Collection[InstanceKind]
) -> tuple[str, ...]:
    """Return the accelerators that no instance of these kinds makes use of."""
    policy = config.optimization
    unused: list[Accelerator] = []
    if InstanceKind.GPU not in kinds:
        unused += policy.gpu_accelerators
    if InstanceKind.CPU not in kinds:
        unused += policy.cpu_accelerators
    return tuple(one.name for one in unused)


def idle_providers(
    chosen: Sequence[Provider], nodes: Mapping[str, int]
) -> tuple[str, ...]:
    """Return the accelerating providers that were asked for and got no node.

    Args:
        chosen: As ``providers`` gave them.
        nodes: Of the optimised graph, how many each provider executes.
    """
    return tuple(
        name for name, _ in chosen if name != CPU_PROVIDER and not nodes.get(name)
    )


def _on_cpu(config: ModelConfig) -> list[Provider]:
    chosen: list[Provider] = []
    for one in config.optimization.cpu_accelerators:
        name = _known(config, one, _CPU_ACCELERATORS)
        chosen.append((name, {"device_type": "CPU", **one.parameters}))
    return chosen


def _on_gpu(config: ModelConfig) -> list[Provider]:
    chosen: list[Provider] = []
    for one in config.optimization.gpu_accelerators:
        name = _known(config, one, _GPU_ACCELERATORS)
        owner = f"execution accelerator '{one.name}' of model '{config.name}'"
        parameters = Parameters(owner, one.parameters)
        if name == TENSORRT_PROVIDER:
            options = _tensorrt_options(config, one, parameters)
        else:
            switches = _switches(one.parameters, parameters, _CUDA_SWITCHES)
            options = {**_cuda_options(config), **one.parameters, **switches}
        chosen.append((name, options))
    if all(name != CUDA_PROVIDER for name, _ in chosen):
        chosen.append((CUDA_PROVIDER, _cuda_options(config)))
    return [(name, options | {"device_id": "0"}) for name, options in chosen]


def _known(config: ModelConfig, one: Accelerator, names: Mapping[str, str]) -> str:
    if one.name not in names:
        message = (
            f"unknown Execution Accelerator '{one.name}' is requested for model"
            f" '{config.name}': known are {', '.join(names)}"
        )
        raise ConfigError(message)
    return names[one.name]


def _tensorrt_options(
    config: ModelConfig, one: Accelerator, parameters: Parameters
) -> dict[str, str]:
    options = {}
    for key, text in one.parameters.items():
        if key not in (_PRECISION, *_TENSORRT_NAMES) and not key.startswith("trt_"):
            message = (
                f"unknown parameter '{key}' is provided for TensorRT Execution"
                f" Accelerator of model '{config.name}'"
            )
            raise ConfigError(message)
        if key in _TENSORRT_NUMBERS:
            parameters.number(key, 0, least=_TENSORRT_NUMBERS[key])
        if text and key != _PRECISION:
            options[_TENSORRT_NAMES.get(key, key)] = text
    switches = _switches(one.parameters, parameters, _TENSORRT_SWITCHES)
    options |= {_TENSORRT_NAMES.get(key, key): text for key, text in switches.items()}
    precision = _PRECISIONS[parameters.word(_PRECISION, _PRECISIONS, "FP32")]
    return options | ({precision: "1"} if precision else {})


def _cuda_options(config: ModelConfig) -> dict[str, str]:
    """Return what the model's own parameters say of CUDA, the older way."""
    parameters = Parameters(f"model '{config.name}'", config.parameters)
    options = _switches(config.parameters, parameters, _CUDA_SWITCHES[:1])
    for key, text in config.parameters.items():
        words = _CUDA_WORDS.get(key)
        if not text.strip():
            continue
        if words is not None:
            options[key] = words[parameters.number(key, 0, most=len(words) - 1)]
        elif key in _CUDA_NUMBERS:
            options[key] = str(parameters.number(key, 0))
    return options


def _switches(
    texts: Mapping[str, str], parameters: Parameters, keys: Collection[str]
) -> dict[str, str]:
    """Return those of ``keys`` that are given, in the runtime's spelling."""
    return {
        key: str(int(parameters.switch(key, default=False)))
        for key in keys
        if texts.get(key)
    }
