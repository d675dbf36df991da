"""ONNX Runtime's options, as a model configuration gives them.

Source:
    The parameters of Triton's ONNX Runtime backend, by the names in its README.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from services.core.errors import ConfigError
from services.core.model_config import Accelerator, InstanceKind, ModelConfig

CPU_PROVIDER: Final = "CPUExecutionProvider"
CUDA_PROVIDER: Final = "CUDAExecutionProvider"
TENSORRT_PROVIDER: Final = "TensorrtExecutionProvider"
OPENVINO_PROVIDER: Final = "OpenVINOExecutionProvider"

Provider: TypeAlias = tuple[str, dict[str, str]]

# Spinning threads win a few microseconds for one model and burn whole cores that
# the other instances, and the streams' threads, could use.
_ENTRIES: Final[Mapping[str, str]] = {
    "session.intra_op.allow_spinning": "0",
    "session.inter_op.allow_spinning": "0",
}
_ENTRY_PREFIXES: Final = ("session.", "optimization.", "ep.")
_SHRINKAGE: Final = "memory.enable_memory_arena_shrinkage"

# By ``optimization.graph.level``; anything else, and none, is "all".
_GRAPH_LEVELS: Final[Mapping[int | None, str]] = {
    -1: "basic",
    1: "extended",
    2: "disabled",
}

# Of the CUDA provider: our parameter's number -> its word.
_CUDA_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
}
_CUDA_PARAMETERS: Final = (*_CUDA_WORDS, "gpu_mem_limit", "do_copy_in_default_stream")

_TENSORRT_NAMES: Final[Mapping[str, str]] = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_PRECISIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How a session computes.

    Attributes:
        intra_op_threads: Within one operator; 0: as many as cores.
        inter_op_threads: Across operators, if parallel; 0: as many as cores.
        is_parallel: Independent operators run at the same time.
        graph_level: "disabled", "basic", "extended" or "all".
        has_arena: CPU memory comes from an arena.
        has_pattern: Memory is planned ahead where shapes are known.
        entries: Configuration entries of the session, by name.
        run_entries: The same of every run.
    """

    intra_op_threads: int
    inter_op_threads: int
    is_parallel: bool
    graph_level: str
    has_arena: bool
    has_pattern: bool
    entries: Mapping[str, str]
    run_entries: Mapping[str, str]


def session_settings(config: ModelConfig) -> SessionSettings:
    """Read the session's settings from a model configuration.

    Raises:
        ConfigError: a number that is none.
    """
    parameters = config.parameters
    entries = dict(_ENTRIES)
    entries.update(
        (key, value)
        for key, value in parameters.items()
        if key.startswith(_ENTRY_PREFIXES)
    )
    shrinkage = parameters.get(_SHRINKAGE)
    return SessionSettings(
        intra_op_threads=_number(config, "intra_op_thread_count", 0),
        inter_op_threads=_number(config, "inter_op_thread_count", 0),
        is_parallel=_number(config, "execution_mode", 0) == 1,
        graph_level=_GRAPH_LEVELS.get(config.optimization.graph_level, "all"),
        has_arena=_number(config, "enable_mem_arena", 1) != 0,
        has_pattern=_number(config, "enable_mem_pattern", 1) != 0,
        entries=entries,
        run_entries={} if shrinkage is None else {_SHRINKAGE: shrinkage},
    )


def providers(
    config: ModelConfig, kind: InstanceKind, available: Collection[str]
) -> list[Provider]:
    """Return the execution providers for instances of ``kind``, best first.

    Args:
        config: Names accelerators and their parameters.
        kind: CPU or GPU; the device a GPU process sees is number 0.
        available: What this build of ONNX Runtime has.

    Raises:
        ConfigError: what the configuration asks for is not available.
    """
    if kind is InstanceKind.CPU:
        chosen = [
            _accelerator(config, one, {"openvino": OPENVINO_PROVIDER})
            for one in config.optimization.cpu_accelerators
        ]
    else:
        words = {"tensorrt": TENSORRT_PROVIDER, "cuda": CUDA_PROVIDER}
        chosen = [
            _accelerator(config, one, words)
            for one in config.optimization.gpu_accelerators
        ]
        if all(name != CUDA_PROVIDER for name, _ in chosen):
            chosen.append((CUDA_PROVIDER, {}))
        chosen = [
            (name, {"device_id": "0", **_cuda_options(config, name), **options})
            for name, options in chosen
        ]
    chosen.append((CPU_PROVIDER, {}))
    for name, _ in chosen:
        if name not in available:
            message = (
                f"model '{config.name}' needs ONNX Runtime's {name}, which this"
                f" worker does not have (it has {', '.join(available)})"
            )
            raise ConfigError(message)
    return chosen


def _accelerator(
    config: ModelConfig, accelerator: Accelerator, words: Mapping[str, str]
) -> Provider:
    name = words.get(accelerator.name)
    if name is None:
        message = (
            f"unknown execution accelerator '{accelerator.name}' is requested for"
            f" model '{config.name}': known are {', '.join(words)}"
        )
        raise ConfigError(message)
    options = dict(accelerator.parameters)
    if name == TENSORRT_PROVIDER:
        precision = options.pop("precision_mode", "FP32")
        if precision not in _PRECISIONS:
            message = (
                f"unsupported precision mode '{precision}' is requested for model"
                f" '{config.name}': known are {', '.join(_PRECISIONS)}"
            )
            raise ConfigError(message)
        options = {_TENSORRT_NAMES.get(key, key): v for key, v in options.items()}
        options.update(_PRECISIONS[precision])
    return name, options


def _cuda_options(config: ModelConfig, provider: str) -> dict[str, str]:
    if provider != CUDA_PROVIDER:
        return {}
    options = {}
    for key in _CUDA_PARAMETERS:
        if key not in config.parameters:
            continue
        words = _CUDA_WORDS.get(key)
        number = _number(config, key, 0)
        if words is None:
            options[key] = str(number)
        elif number < len(words):
            options[key] = words[number]
        else:
            raise ConfigError(_not_a_number(config, key, f"0..{len(words) - 1}"))
    return options


def _number(config: ModelConfig, key: str, default: int) -> int:
    text = config.parameters.get(key, "").strip()
    if not text:
        return default
    if not text.isdecimal():
        raise ConfigError(_not_a_number(config, key, "0 or more"))
    return int(text)


def _not_a_number(config: ModelConfig, key: str, expected: str) -> str:
    return (
        f"parameter '{key}' of model '{config.name}' is '{config.parameters[key]}':"
        f" expected a number, {expected}"
    )
