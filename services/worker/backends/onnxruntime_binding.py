"""Running a session into memory that is kept.

A run makes new arrays for its outputs; large ones may begin as fresh pages, which cost
more than the results. Here an instance keeps the memory of its outputs and binds it
anew only when their shapes change. Two sums of two arrays, bound / not, in us a run,
where (in brackets) ONNX Runtime's arena, which keeps pages too, is switched off:

    64 KiB   10 / 8 (10 / 8)          4.7 MiB   139 / 140 (131 / 202)
     1 MiB   38 / 38 (39 / 37)        32 MiB    2,040 / 2,120 (2,050 / 10,400)
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from services.core.datatype import DataType
from services.core.model_config import ModelConfig
from services.worker.backend import Tensors
from services.worker.gather import Allocate, Bytes

# From so many bytes on it pays; for what comes from a GPU into pinned memory, sooner.
WORTH_BYTES: Final = 2 << 20
GPU_WORTH_BYTES: Final = 16 << 10

# Above this memory is not kept.
_KEPT_BYTES: Final = 64 << 20
_BFLOAT16: Final = 16  # onnx.TensorProto.BFLOAT16
# What the runtime says when a model's output is not of the shape it declares.
_OTHER_SHAPE: Final = re.compile("computed output shape|shape verification failed")

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPlan:
    """What is known of an output before the model has run.

    Attributes:
        name: Of the output.
        datatype: Of its elements, never BYTES.
        dims: Each a number, or the input and the axis that has the same symbol.
    """

    name: str
    datatype: DataType
    dims: tuple[int | tuple[str, int], ...]

    def shape(self, inputs: Tensors) -> Shape:
        """Return the output's shape for these inputs."""
        return tuple(
            dim if isinstance(dim, int) else inputs[dim[0]].shape[dim[1]]
            for dim in self.dims
        )

    def size(self, shape: Shape) -> int:
        """Return how many bytes an output of ``shape`` has."""
        return math.prod(shape) * self.datatype.numpy_dtype.itemsize


def output_plans(
    config: ModelConfig,
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str]],
) -> tuple[OutputPlan, ...]:
    """Return plans for all configured outputs; () if one cannot be foreseen.

    Args:
        config: Of the model.
        inputs: By name, the shapes that the file declares: numbers and symbols.
        outputs: The same.
    """
    required = [one.name for one in config.inputs if not one.optional]
    places = {
        dim: (name, axis)
        for name in reversed(required)
        for axis, dim in enumerate(inputs.get(name, ()))
        if isinstance(dim, str) and dim
    }
    plans = []
    for tensor in config.outputs:
        dims = [
            dim if isinstance(dim, int) else places.get(dim)
            for dim in outputs[tensor.name]
        ]
        known = tuple(dim for dim in dims if dim is not None)
        if len(known) < len(dims) or tensor.datatype is DataType.BYTES:
            return ()
        plans.append(OutputPlan(name=tensor.name, datatype=tensor.datatype, dims=known))
    return tuple(plans)


def is_worth_it(
    plans: Sequence[OutputPlan], config: ModelConfig, worth_bytes: int
) -> bool:
    """Tell whether some batch may have outputs of ``worth_bytes`` together."""
    rows = max(config.max_batch_size, 1)
    largest = 0
    for plan in plans:
        varies = [dim for dim in plan.dims if not isinstance(dim, int)]
        by_row = config.max_batch_size > 0 and plan.dims[:1] == tuple(varies)
        if varies and not by_row:
            return True
        fixed = tuple(dim for dim in plan.dims if isinstance(dim, int))
        largest += plan.size((rows, *fixed) if by_row else fixed)
    return largest >= worth_bytes


class OutputBinding:
    """The kept outputs of one instance; used by one thread at a time."""

    def __init__(
        self,
        session: ort.InferenceSession,
        plans: Sequence[OutputPlan],
        bf16_inputs: frozenset[str],
        allocate: Allocate,
        worth_bytes: int,
    ) -> None:
        """Keep nothing yet.

        Args:
            session: To run.
            plans: Of all outputs.
            bf16_inputs: The inputs that come as bit patterns.
            allocate: Returns memory of a size.
            worth_bytes: From how many bytes of outputs on they are kept.
        """
        self._session = session
        self._plans = {plan.name: plan for plan in plans}
        self._bf16_inputs = bf16_inputs
        self._allocate = allocate
        self._worth_bytes = worth_bytes
        self._memory: dict[str, Bytes] = {}
        self._binding = session.io_binding()
        self._bound: dict[str, Shape] = {}
        self._arrays: dict[str, NDArray[Any]] = {}

    def run(
        self, inputs: Tensors, names: Sequence[str], options: ort.RunOptions | None
    ) -> Tensors | None:
        """Run one batch into kept memory.

        Returns:
            None if its outputs are too small or too large for that; nothing has
            been run.

        Raises:
            UnforeseenShapeError: an output is not of the shape its file declares.
            Exception: whatever else the runtime says.
        """
        shapes = {name: self._plans[name].shape(inputs) for name in names}
        sizes = [self._plans[name].size(shape) for name, shape in shapes.items()]
        if not self._worth_bytes <= sum(sizes) <= _KEPT_BYTES:
            return None
        if shapes != self._bound:
            self._bind(shapes, sizes)
        for name, array in inputs.items():
            self._bind_input(name, array)
        try:
            self._session.run_with_iobinding(self._binding, options)
        except Exception as error:
            if _OTHER_SHAPE.search(str(error)):
                raise UnforeseenShapeError(str(error)) from error
            raise
        finally:
            # They are valid during this call only.
            self._binding.clear_binding_inputs()
        return self._arrays

    def _bind_input(self, name: str, array: NDArray[Any]) -> None:
        if name not in self._bf16_inputs:
            self._binding.bind_cpu_input(name, array)
            return
        self._binding.bind_input(
            name, "cpu", 0, _BFLOAT16, array.shape, array.ctypes.data
        )

    def _bind(self, shapes: Mapping[str, Shape], sizes: Sequence[int]) -> None:
        self._binding.clear_binding_outputs()
        self._bound, self._arrays = {}, {}
        for (name, shape), size in zip(shapes.items(), sizes, strict=True):
            datatype = self._plans[name].datatype
            memory = self._memory.get(name)
            if memory is None or len(memory) < size:
                memory = self._memory[name] = self._allocate(max(size, 1))
            array: NDArray[Any] = np.ndarray(shape, datatype.numpy_dtype, memory)
            kind = _BFLOAT16 if datatype is DataType.BF16 else array.dtype.type
            self._binding.bind_output(name, "cpu", 0, kind, shape, memory.ctypes.data)
            self._arrays[name] = array
        self._bound = dict(shapes)


class UnforeseenShapeError(Exception):
    """A model's output is not of the shape that its file declares."""
