"""TensorRT plans, run by the tensorrt package.

Never run on a card yet: see docs/gpu.md. What needs no GPU is decided in
``tensorrt_profiles``.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorrt as trt
from numpy.typing import NDArray

from services.core.errors import BackendError, ConfigError
from services.worker.backend import (
    FoundModel,
    InstancePlace,
    ModelSource,
    Runtime,
    Tensors,
)
from services.worker.backends.parameters import Parameters
from services.worker.backends.tensorrt_engine import Logger, facts_of, read_engine
from services.worker.backends.tensorrt_profiles import (
    EngineFacts,
    EngineTensor,
    Profile,
    Shape,
    choose_profile,
    profiles_of,
    require_supported,
)
from services.worker.cuda_driver import Address, CudaDriver, open_driver
from services.worker.device import DeviceKind
from services.worker.gather import Allocate
from services.worker.host_memory import output_memory
from services.worker.model_check import check_model
from services.worker.model_file import model_file

_DEFAULT_FILENAME: Final = "model.plan"
_STRATEGY: Final = "execution_context_allocation_strategy"
_STRATEGIES: Final = ("STATIC", "ON_PROFILE_CHANGE")


def runtime() -> Runtime:
    """Return the way to load TensorRT plans."""
    return TensorRtRuntime()


class TensorRtRuntime:
    """Loads TensorRT plans.

    The instances of a version share one engine, so its weights are on the GPU once;
    each has a stream, and an execution context for each of its profiles.
    """

    def __init__(self) -> None:
        """Keep TensorRT's words."""
        self._logger = Logger()

    def load(
        self, source: ModelSource, places: Sequence[InstancePlace]
    ) -> tuple["TensorRtModel", ...]:
        """Load one model version; see Runtime."""
        config = source.config
        driver = _driver(source)
        parameters = Parameters(f"model '{config.name}'", config.parameters)
        strategy = parameters.word(_STRATEGY, _STRATEGIES, _STRATEGIES[0])
        path = model_file(source, _DEFAULT_FILENAME)
        engine = read_engine(path, self._logger)
        facts = facts_of(engine)
        require_supported(config, facts)
        check_model(config, facts.found())
        models: list[TensorRtModel] = []
        try:
            for place in places:
                profiles = profiles_of(config, place, facts)
                memory = output_memory(source, place)
                model = TensorRtModel(place.name, engine, driver, self._logger, memory)
                models.append(model)
                model.prepare(facts, profiles, strategy)
        except Exception:
            for model in models:
                model.unload()
            raise
        return tuple(models)

    def inspect(self, source: ModelSource) -> FoundModel:
        """Read the plan's tensors; see Runtime."""
        _driver(source)
        path = model_file(source, _DEFAULT_FILENAME)
        return facts_of(read_engine(path, self._logger)).found()


class TensorRtModel:
    """One instance of a TensorRT plan; see Backend.

    All memory is taken when it is loaded, for the largest shapes of its profiles.
    """

    def __init__(
        self,
        name: str,
        engine: Any,  # noqa: ANN401 - the package has no types
        driver: CudaDriver,
        logger: Logger,
        allocate: Allocate,
    ) -> None:
        """Have nothing of the GPU yet; ``allocate`` returns memory for outputs."""
        self._name = name
        self._engine = engine
        self._driver = driver
        self._logger = logger
        self._allocate = allocate
        self._stream: Address = 0
        self._facts = EngineFacts(inputs=(), outputs=(), profiles=())
        self._profiles: tuple[Profile, ...] = ()
        self._contexts: dict[int, Any] = {}
        self._device: dict[str, Address] = {}
        self._host: dict[str, NDArray[np.uint8]] = {}

    def prepare(
        self, facts: EngineFacts, profiles: tuple[Profile, ...], strategy: str
    ) -> None:
        """Take stream, contexts and memory.

        Raises:
            BackendError: there is not enough of it; what was taken is unloaded by
                ``unload``.
            ConfigError: an output's shape depends on more than the inputs' shapes.
        """
        self._driver.enter()
        self._facts = facts
        self._profiles = profiles
        self._stream = self._driver.open_stream()
        kind = getattr(trt.ExecutionContextAllocationStrategy, strategy)
        sizes: dict[str, int] = {}
        for profile in profiles:
            context = self._engine.create_execution_context(kind)
            self._require(context is not None, "create an execution context")
            self._contexts[profile.index] = context
            chosen = context.set_optimization_profile_async(profile.index, self._stream)
            self._require(chosen, f"set optimization profile {profile.index}")
            self._driver.wait(self._stream)
            most = {name: one.most for name, one in profile.ranges.items()}
            shapes = {**most, **self._set_shapes(context, most)}
            for tensor in (*facts.inputs, *facts.outputs):
                size = _size(tensor, shapes[tensor.name])
                sizes[tensor.name] = max(size, sizes.get(tensor.name, 1))
        for name, size in sizes.items():
            self._device[name] = self._driver.allocate(size)
            for context in self._contexts.values():
                is_set = context.set_tensor_address(name, self._device[name])
                self._require(is_set, f"set the memory of tensor '{name}'")
        for tensor in facts.outputs:
            self._host[tensor.name] = self._allocate(sizes[tensor.name])

    def execute(self, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
        """Run one batch; see Backend."""
        missing = [one.name for one in self._facts.inputs if one.name not in inputs]
        if missing:
            message = f"{self._name} needs input '{missing[0]}', which the batch lacks"
            raise BackendError(message)
        self._driver.enter()
        shapes = {one.name: inputs[one.name].shape for one in self._facts.inputs}
        profile = choose_profile(self._profiles, shapes, self._name)
        context = self._contexts[profile.index]
        outputs = self._set_shapes(context, shapes)
        for tensor in self._facts.inputs:
            array = inputs[tensor.name]
            self._driver.to_device(
                self._device[tensor.name],
                array.ctypes.data,
                array.nbytes,
                self._stream,
            )
        has_begun = context.execute_async_v3(self._stream)
        arrays = self._receive(outputs, output_names) if has_begun else {}
        # Also after a failure: the inputs may still be read.
        self._driver.wait(self._stream)
        self._require(has_begun, "enqueue a batch")
        return arrays

    def unload(self) -> None:
        """Give everything back; the engine ends with its last instance."""
        self._driver.enter()
        self._contexts.clear()
        self._host.clear()
        for address in self._device.values():
            self._driver.free(address)
        self._device.clear()
        if self._stream:
            self._driver.close_stream(self._stream)
            self._stream = 0
        self._engine = None

    def _set_shapes(
        self,
        context: Any,  # noqa: ANN401
        shapes: Mapping[str, Shape],
    ) -> dict[str, Shape]:
        """Tell a context the inputs' shapes; return the outputs'.

        Raises:
            ConfigError: they depend on more than that.
        """
        for name, shape in shapes.items():
            is_set = context.set_input_shape(name, shape)
            self._require(is_set, f"set the shape of input '{name}' to {list(shape)}")
        outputs = {}
        for tensor in self._facts.outputs:
            shape = tuple(context.get_tensor_shape(tensor.name))
            if -1 in shape:
                message = (
                    f"{self._name}: the shape {list(shape)} of output '{tensor.name}'"
                    " depends on the data, which Nereid does not support"
                )
                raise ConfigError(message)
            outputs[tensor.name] = shape
        return outputs

    def _receive(
        self, shapes: Mapping[str, Shape], names: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """Have outputs copied to the host; they are there once the stream is done."""
        arrays: dict[str, NDArray[Any]] = {}
        for tensor in self._facts.outputs:
            if tensor.name not in names:
                continue
            shape, memory = shapes[tensor.name], self._host[tensor.name]
            arrays[tensor.name] = np.ndarray(shape, tensor.datatype.numpy_dtype, memory)
            self._driver.to_host(
                memory.ctypes.data,
                self._device[tensor.name],
                _size(tensor, shape),
                self._stream,
            )
        return arrays

    def _require(self, success: object, what: str) -> None:
        if not success:
            message = (
                f"{self._name}: TensorRT did not {what}: {self._logger.last_error}"
            )
            raise BackendError(message)


def _driver(source: ModelSource) -> CudaDriver:
    """Return the GPU, ready for the calling thread.

    Raises:
        ConfigError: this worker has none.
        BackendError: its driver is missing.
    """
    if source.device.kind is not DeviceKind.GPU:
        message = (
            f"unable to load model '{source.config.name}', TensorRT backend supports"
            f" only GPU device, and this worker serves {source.device.label}"
        )
        raise ConfigError(message)
    driver = open_driver()
    driver.enter()
    return driver


def _size(tensor: EngineTensor, shape: Shape) -> int:
    return math.prod(shape) * tensor.datatype.numpy_dtype.itemsize
