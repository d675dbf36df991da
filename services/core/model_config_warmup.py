"""Requests that a model runs before it counts as ready."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from services.core.datatype import DataType
from services.core.model_config_fields import require_fixed_dims, require_name


class WarmupData(enum.Enum):
    """What a warm-up tensor is filled with."""

    ZERO = "zero_data"
    RANDOM = "random_data"
    FILE = "input_data_file"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupInput:
    """One tensor of a warm-up request.

    Attributes:
        datatype: Of its elements.
        dims: Without the batch dimension; no variable one.
        data: What it is filled with.
        data_file: Raw tensor bytes, below <model>/warmup; "" unless FILE.
    """

    datatype: DataType
    dims: tuple[int, ...]
    data: WarmupData
    data_file: str = ""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        require_fixed_dims(self.dims, "a warm-up tensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """Requests to run before the model counts as ready.

    Attributes:
        name: For messages.
        batch_size: Requests batched together; 0: skip this one.
        inputs: By tensor name.
        count: Times to run it, >= 1.
    """

    name: str
    batch_size: int
    inputs: Mapping[str, WarmupInput]
    count: int = 1

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        require_name(self.name)
