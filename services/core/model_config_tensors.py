"""The tensors of a model, as its configuration declares them."""

import enum
from dataclasses import dataclass
from itertools import zip_longest

from services.core.datatype import DataType
from services.core.model_config_fields import (
    VARIABLE,
    FieldError,
    require_dims,
    require_name,
)

IMAGE_RANK = 3


class TensorFormat(enum.Enum):
    """What the dimensions of an image mean; values are the schema's numbers."""

    NONE = 0
    NHWC = 1
    NCHW = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutput:
    """One output of the model.

    Attributes:
        name: Unique among the outputs.
        datatype: Of its elements.
        dims: The shape that responses have, without the batch dimension where
            the model has one; -1 is variable. Never empty.
        reshape: The shape the model itself gives, if not ``dims``; as many
            elements. Empty: a scalar for each row.
        label_filename: Names of its classes, one a line; "" if none.
        is_shape_tensor: Its values are a shape (TensorRT).
        is_non_linear_format_io: A TensorRT layout other than the linear one.
    """

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    label_filename: str = ""
    is_shape_tensor: bool = False
    is_non_linear_format_io: bool = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        _require_tensor(self)

    @property
    def model_dims(self) -> tuple[int, ...]:
        """The shape the model itself gives, without the batch dimension."""
        return self.dims if self.reshape is None else self.reshape


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    """One input of the model.

    Attributes:
        name: Unique among the inputs.
        datatype: Of its elements.
        dims: The shape that requests have, without the batch dimension where
            the model has one; -1 is variable. Never empty.
        reshape: The shape the model itself wants, if not ``dims``; as many
            elements. Empty: a scalar for each row.
        optional: A request may leave it out.
        allow_ragged_batch: Requests of different shapes may share a batch.
        format: What the dimensions of an image mean.
        is_shape_tensor: Its values are a shape (TensorRT).
        is_non_linear_format_io: A TensorRT layout other than the linear one.
    """

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    allow_ragged_batch: bool = False
    format: TensorFormat = TensorFormat.NONE
    is_shape_tensor: bool = False
    is_non_linear_format_io: bool = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        _require_tensor(self)
        if self.format is not TensorFormat.NONE and len(self.dims) != IMAGE_RANK:
            msg = f"model input '{self.name}': NHWC/NCHW require 3 dims"
            raise FieldError(msg, "format")

    @property
    def model_dims(self) -> tuple[int, ...]:
        """The shape the model itself wants, without the batch dimension."""
        return self.dims if self.reshape is None else self.reshape


class BatchInputKind(enum.Enum):
    """What the batcher computes; values are the schema's numbers."""

    ELEMENT_COUNT = 0
    ACCUMULATED_ELEMENT_COUNT = 1
    ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = 2
    MAX_ELEMENT_COUNT_AS_SHAPE = 3
    ITEM_SHAPE = 4
    ITEM_SHAPE_FLATTEN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInput:
    """Model inputs that the batcher fills from the shapes of a batch.

    Attributes:
        kind: What is computed.
        target_names: The model's inputs that receive it.
        datatype: INT32 or FP32.
        source_input: The input whose shapes are counted.
    """

    kind: BatchInputKind
    target_names: tuple[str, ...]
    datatype: DataType
    source_input: str

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        if self.datatype not in (DataType.INT32, DataType.FP32):
            msg = "batch input data type must be TYPE_INT32 or TYPE_FP32"
            raise FieldError(msg, "data_type")


class BatchOutputKind(enum.Enum):
    """How an output is cut into responses; values are the schema's numbers."""

    SCATTER_WITH_INPUT_SHAPE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutput:
    """Model outputs that need a rule to be cut into responses.

    Attributes:
        kind: The rule.
        target_names: The outputs it is for; no name twice.
        source_input: The input whose shapes say where to cut.
    """

    kind: BatchOutputKind
    target_names: tuple[str, ...]
    source_input: str

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        for i, name in enumerate(self.target_names):
            if name in self.target_names[:i]:
                msg = f"target output name '{name}' can only be specified once"
                raise FieldError(msg, "target_name", i)


def _require_tensor(tensor: ModelInput | ModelOutput) -> None:
    require_name(tensor.name)
    if not tensor.dims:
        raise FieldError(f"'{tensor.name}' must specify 'dims'", "dims")
    require_dims(tensor.dims, "dims")
    if tensor.reshape is not None:
        try:
            require_dims(tensor.reshape, "shape")
        except FieldError as error:
            raise error.within("reshape") from None
        _require_same_size(tensor.name, tensor.dims, tensor.reshape)
    if tensor.is_non_linear_format_io and len(tensor.dims) != IMAGE_RANK:
        msg = f"non-linear format of '{tensor.name}' requires 3 dims"
        raise FieldError(msg, "is_non_linear_format_io")


def _require_same_size(
    name: str, dims: tuple[int, ...], reshape: tuple[int, ...]
) -> None:
    # Element counts between variable dimensions must agree one by one:
    # [2, 4, -1, 6] fits [8, -1, 1, 6], not [4, -1, 12].
    for ours, theirs in zip_longest(_runs(dims), _runs(reshape)):
        if ours is None or theirs is None:
            msg = (
                f"'{name}' has different number of variable-size dimensions for "
                "dims and reshape"
            )
            raise FieldError(msg, "reshape")
        if ours != theirs:
            msg = f"'{name}' has different size for dims and reshape"
            raise FieldError(msg, "reshape")


def _runs(dims: tuple[int, ...]) -> list[int]:
    runs = [1]
    for dim in dims:
        if dim == VARIABLE:
            runs.append(1)
        else:
            runs[-1] *= dim
    return runs
