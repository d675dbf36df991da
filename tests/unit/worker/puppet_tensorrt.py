"""The tensorrt package without a GPU: a plan is JSON, and its engine multiplies.

    {"inputs": {"X": ["FLOAT", [-1, 3]]}, "outputs": {"Y": ["FLOAT", [-1, 3]]},
     "profiles": [{"X": [[1, 3], [4, 3], [8, 3]]}], "factor": 2}

Every output is the first input by the factor; where its shape has a -1, it has the
length of the first input there.
"""

import ctypes
import enum
import json
import math
import types
from typing import Any

import numpy as np

from tests.unit.worker.puppet_cuda import PuppetCuda

NUMPY = {"FLOAT": np.float32, "HALF": np.float16, "INT32": np.int32}


class Severity(enum.Enum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3


class ILogger:
    INTERNAL_ERROR = Severity.INTERNAL_ERROR
    ERROR = Severity.ERROR
    WARNING = Severity.WARNING

    def log(self, severity: Severity, text: str) -> None:
        raise NotImplementedError


class TensorIOMode(enum.Enum):
    INPUT = 1
    OUTPUT = 2


class TensorFormat(enum.Enum):
    LINEAR = 0
    CHW32 = 5


class ExecutionContextAllocationStrategy(enum.Enum):
    STATIC = 0
    ON_PROFILE_CHANGE = 1


class Engine:
    """A plan, read.

    Attributes:
        contexts: All that were made.
    """

    def __init__(self, plan: dict[str, Any], logger: ILogger, cuda: PuppetCuda) -> None:
        self.plan = plan
        self.logger = logger
        self.cuda = cuda
        self.contexts: list[Context] = []
        self._tensors = {**plan["inputs"], **plan["outputs"]}
        self.num_io_tensors = len(self._tensors)
        self.num_optimization_profiles = len(plan["profiles"])

    def get_tensor_name(self, index: int) -> str:
        return str(list(self._tensors)[index])

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        is_input = name in self.plan["inputs"]
        return TensorIOMode.INPUT if is_input else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(name=self._tensors[name][0])

    def get_tensor_shape(self, name: str) -> list[int]:
        return list(self._tensors[name][1])

    def get_tensor_format(self, name: str) -> TensorFormat:
        is_linear = name not in self.plan.get("vectorized", ())
        return TensorFormat.LINEAR if is_linear else TensorFormat.CHW32

    def is_shape_inference_io(self, name: str) -> bool:
        return name in self.plan.get("shape_tensors", ())

    def get_tensor_profile_shape(self, name: str, index: int) -> list[list[int]]:
        ranges: list[list[int]] = self.plan["profiles"][index][name]
        return ranges

    def create_execution_context(
        self, strategy: ExecutionContextAllocationStrategy
    ) -> "Context":
        context = Context(self, strategy)
        self.contexts.append(context)
        return context


class Context:
    """A place to run an engine at.

    Attributes:
        profile: Chosen.
        runs: How many there were.
    """

    def __init__(
        self, engine: Engine, strategy: ExecutionContextAllocationStrategy
    ) -> None:
        self.profile = -1
        self.runs = 0
        self.strategy = strategy
        self._engine = engine
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        assert stream in self._engine.cuda.streams
        self.profile = index
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, _, most = self._engine.get_tensor_profile_shape(name, self.profile)
        fits = all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True))
        self._shapes[name] = tuple(shape)
        return fits

    def get_tensor_shape(self, name: str) -> list[int]:
        if name in self._engine.plan.get("data_dependent", ()):
            return [-1]
        first = next(iter(self._engine.plan["inputs"]))
        shape = self._engine.get_tensor_shape(name)
        actual = self._shapes[first]
        return [actual[axis] if dim == -1 else dim for axis, dim in enumerate(shape)]

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        self.runs += 1
        if self._engine.plan.get("fails"):
            self._engine.logger.log(Severity.ERROR, "enqueue went wrong")
            return False
        self._engine.cuda.streams[stream].append(self._compute)
        return True

    def _compute(self) -> None:
        plan = self._engine.plan
        first = next(iter(plan["inputs"]))
        x = self._array(first, self._shapes[first])
        for name in plan["outputs"]:
            y = self._array(name, tuple(self.get_tensor_shape(name)))
            y.reshape(-1)[:] = x.reshape(-1)[: y.size] * plan["factor"]

    def _array(self, name: str, shape: tuple[int, ...]) -> Any:  # noqa: ANN401
        dtype = np.dtype(NUMPY[self._engine.get_tensor_dtype(name).name])
        size = math.prod(shape) * dtype.itemsize
        block = (ctypes.c_ubyte * size).from_address(self._addresses[name])
        return np.ndarray(shape, dtype, memoryview(block))


def module(cuda: PuppetCuda) -> types.ModuleType:
    """Return what is to stand in the place of the package.

    Its ``engines`` are all that were read.
    """
    package = types.ModuleType("tensorrt")
    engines: list[Engine] = []

    class Runtime:
        def __init__(self, logger: ILogger) -> None:
            self._logger = logger

        def deserialize_cuda_engine(self, content: bytes) -> Engine | None:
            try:
                plan = json.loads(content)
            except ValueError:
                self._logger.log(Severity.ERROR, "magic tag does not match")
                return None
            engines.append(Engine(plan, self._logger, cuda))
            return engines[-1]

    package.__dict__.update(
        engines=engines,
        ExecutionContextAllocationStrategy=ExecutionContextAllocationStrategy,
        ILogger=ILogger,
        Runtime=Runtime,
        TensorFormat=TensorFormat,
        TensorIOMode=TensorIOMode,
        init_libnvinfer_plugins=lambda _logger, _namespace: True,
    )
    return package
