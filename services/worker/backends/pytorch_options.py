"""PyTorch's options, as a model configuration gives them.

Source:
    The parameters of Triton's PyTorch backend, by the names in its README.
"""

from dataclasses import dataclass
from typing import Final

from services.core.errors import ConfigError
from services.core.model_config import ModelConfig

_WORDS: Final = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """How a model computes.

    Attributes:
        inference_mode: Without autograd's bookkeeping; False: only without gradients.
        optimized_execution: TorchScript is optimised while it runs.
        jit_executor: TorchScript's profiling executor; None: PyTorch's choice.
        jit_profiling: It specialises on the shapes it has seen; None likewise.
        tensor_fuser: It fuses operators; None likewise.
        cudnn: cuDNN may be used.
        weight_sharing: The instances on a device share one copy of the model.
        cache_cleaning: Unused GPU memory is given back after each execution.
        intra_op_threads: Within one operator; 0: PyTorch's choice. Of the process.
        inter_op_threads: Across operators; 0: PyTorch's choice. Of the process.
    """

    inference_mode: bool = True
    optimized_execution: bool = True
    jit_executor: bool | None = None
    jit_profiling: bool | None = None
    tensor_fuser: bool | None = None
    cudnn: bool = True
    weight_sharing: bool = False
    cache_cleaning: bool = False
    intra_op_threads: int = 0
    inter_op_threads: int = 0


def torch_settings(config: ModelConfig) -> TorchSettings:
    """Read the settings from a model configuration.

    Raises:
        ConfigError: a value that is none.
    """
    return TorchSettings(
        inference_mode=_switch(config, "INFERENCE_MODE") is not False,
        optimized_execution=not _switch(config, "DISABLE_OPTIMIZED_EXECUTION"),
        jit_executor=_switch(config, "ENABLE_JIT_EXECUTOR"),
        jit_profiling=_switch(config, "ENABLE_JIT_PROFILING"),
        tensor_fuser=_switch(config, "ENABLE_TENSOR_FUSER"),
        cudnn=not _switch(config, "DISABLE_CUDNN"),
        weight_sharing=bool(_switch(config, "ENABLE_WEIGHT_SHARING")),
        cache_cleaning=bool(_switch(config, "ENABLE_CACHE_CLEANING")),
        intra_op_threads=_number(config, "INTRA_OP_THREAD_COUNT", "NUM_THREADS"),
        inter_op_threads=_number(
            config, "INTER_OP_THREAD_COUNT", "NUM_INTEROP_THREADS"
        ),
    )


def _switch(config: ModelConfig, key: str) -> bool | None:
    text = config.parameters.get(key)
    if text is None:
        return None
    value = _WORDS.get(text.strip().lower())
    if value is None:
        raise ConfigError(_unexpected(config, key, "true or false"))
    return value


def _number(config: ModelConfig, *keys: str) -> int:
    for key in keys:
        text = config.parameters.get(key, "").strip()
        if text.isdecimal():
            return int(text)
        if text:
            raise ConfigError(_unexpected(config, key, "a number, 0 or more"))
    return 0


def _unexpected(config: ModelConfig, key: str, expected: str) -> str:
    return (
        f"parameter '{key}' of model '{config.name}' is '{config.parameters[key]}':"
        f" expected {expected}"
    )
