"""Small PyTorch models, saved in each of the forms that are served."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from services.core.datatype import DataType
from services.core.model_config import (
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    ModelInput,
    ModelOutput,
)
from services.worker.backend import ModelSource
from services.worker.device import Device, DeviceKind

CPU = Device(kind=DeviceKind.CPU)


class AddSub(torch.nn.Module):
    """Two sums with a weight in them: FP32 (rows, 4) each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(4.0) + 1)

    def forward(
        self, left: torch.Tensor, right: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return left * self.weight + right, left - right


class Nested(torch.nn.Module):
    def forward(
        self,
        x: torch.Tensor,
        scale: float,
        options: dict[str, torch.Tensor],
        flag: bool | None = None,  # noqa: ARG002 - exported as a constant
        *,
        last: torch.Tensor,
    ) -> dict[str, Any]:
        pair = (options["a"] - last, options["b"] * 2)
        return {"sum": x * scale + options["a"], "pair": pair, "count": 3}


def nested_arguments() -> dict[str, Any]:
    """Return what Nested is exported with."""
    batch = {0: torch.export.Dim("batch", max=16)}
    return {
        "arguments": (rows(2), 2.0, {"a": rows(2, 1.0), "b": rows(2, 2.0)}, None),
        "keywords": {"last": rows(2, 3.0)},
        "dynamic_shapes": {
            "x": batch,
            "scale": None,
            "options": {"a": batch, "b": batch},
            "flag": None,
            "last": batch,
        },
    }


def rows(count: int, first: float = 0.0) -> torch.Tensor:
    """Return FP32 (count, 4), each element another."""
    return torch.arange(first, first + 4 * count).reshape(count, 4)


def save_script(directory: Path, model: torch.nn.Module) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    torch.jit.script(model).save(str(directory / "model.pt"))


def save_exported(
    directory: Path,
    model: torch.nn.Module,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any] | None = None,
    **options: Any,  # noqa: ANN401 - of torch.export.export
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    program = torch.export.export(model, arguments, dict(keywords or {}), **options)
    torch.export.save(program, directory / "model.pt2")


def save_compiled(
    directory: Path,
    model: torch.nn.Module,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any] | None = None,
    **options: Any,  # noqa: ANN401 - of torch.export.export
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    program = torch.export.export(model, arguments, dict(keywords or {}), **options)
    torch._inductor.aoti_compile_and_package(
        program, package_path=str(directory / "model.pt2")
    )


def batched(*names: str) -> dict[str, Any]:
    """Return dynamic_shapes whose first dimension is one batch, for each of names."""
    batch = torch.export.Dim("batch")
    return {name: {0: batch} for name in names}


def config(
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
    datatype: DataType = DataType.FP32,
    *,
    max_batch_size: int = 8,
    kind: InstanceKind = InstanceKind.CPU,
    reshape: Sequence[int] | None = None,
    **more: Any,  # noqa: ANN401 - any field of ModelConfig
) -> ModelConfig:
    shape = None if reshape is None else tuple(reshape)
    return ModelConfig(
        name="m",
        backend="pytorch",
        max_batch_size=max_batch_size,
        inputs=tuple(
            ModelInput(name=name, datatype=datatype, dims=tuple(dims), reshape=shape)
            for name, dims in inputs.items()
        ),
        outputs=tuple(
            ModelOutput(name=name, datatype=datatype, dims=tuple(dims), reshape=shape)
            for name, dims in outputs.items()
        ),
        instance_groups=(InstanceGroup(name="m_0", kind=kind, count=1),),
        **more,
    )


def source(directory: Path, of: ModelConfig, device: Device = CPU) -> ModelSource:
    return ModelSource(config=of, version=1, directory=str(directory), device=device)
