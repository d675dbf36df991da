"""The backend "identity": each OUTPUT<i> is its INPUT<i>.

Source: triton-inference-server/identity_backend. Its parameters ``execute_delay_ms``
(before each batch), ``instance_wise_delay_multiplier`` (times the number of the
instance, at least 1) and ``creation_delay_sec``; its metric.
"""

import math
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from services.core.datatype import DataType
from services.core.errors import UnsupportedError
from services.core.model_config import ModelConfig, ModelInput
from services.worker import wire
from services.worker.backend import (
    BackendAnswer,
    BackendCall,
    BackendFailure,
    BackendReply,
    InstancePlace,
    ModelSource,
    ReplyTensor,
    Runtime,
)
from services.worker.model_metrics import Metric, MetricFamily
from services.worker.qa_backends.expectations import (
    expect,
    shape_text,
    whole_parameter,
)
from services.worker.qa_backends.runtime import QaRuntime

_INPUT: Final = "INPUT"
_OUTPUT: Final = "OUTPUT"
_MS_PER_S: Final = 1000
_EMPTY_STRING_BYTES: Final = 4


def runtime() -> Runtime:
    """Return the way to load models of this backend."""
    return QaRuntime("identity", _prepare, Identity)


class _Echo(NamedTuple):
    """What one output repeats.

    Attributes:
        input: Index of its input.
        datatype: Of both.
        default_dims: Of a row of zeros, where the input is left out; None: it
            cannot be.
    """

    input: int
    datatype: DataType
    default_dims: tuple[int, ...] | None


class Identity:
    """One instance; see RequestBackend."""

    def __init__(self, source: ModelSource, _place: InstancePlace, number: int) -> None:
        """Learn which output repeats which input.

        Args:
            source: Checked.
            number: Of the instance, from 0, for its delay.
        """
        config = source.config
        multiplier = whole_parameter(config, "instance_wise_delay_multiplier") * number
        delay_ms = whole_parameter(config, "execute_delay_ms")
        self._delay_s = delay_ms * max(multiplier, 1) / _MS_PER_S
        self._is_batched = config.max_batch_size > 0
        self._input_names = [one.name for one in config.inputs]
        self._echoes = [_echo(config, one.name) for one in config.outputs]
        self._labels = {"model": config.name, "version": str(source.version)}
        self._copied_bytes = 0
        self._metrics = source.metrics.open(self._families)
        self._metrics.changed()

    def execute_requests(self, calls: Sequence[BackendCall]) -> list[BackendAnswer]:
        """Run one batch."""
        if self._delay_s:
            time.sleep(self._delay_s)
        answers = [self._answer(call) for call in calls]
        self._metrics.changed()
        return answers

    def unload(self) -> None:
        """Forget the metric."""
        self._metrics.close()

    def _answer(self, call: BackendCall) -> BackendAnswer:
        given = {tensor.slot: tensor for tensor in call.inputs}
        tensors = []
        for slot in call.outputs:
            echo = self._echoes[slot]
            tensor = given.get(echo.input)
            if tensor is not None:
                self._copied_bytes += len(tensor.data)
                shape, data = tensor.shape, tensor.data
            elif echo.default_dims is not None:
                rows = call.inputs[0].shape[:1] if self._is_batched else ()
                shape = rows + echo.default_dims
                data = _zeros(echo.datatype, shape)
            else:
                name = self._input_names[echo.input]
                error = UnsupportedError(f"failed to get input '{name}'")
                return BackendFailure(*wire.error_status(error))
            tensors.append(ReplyTensor(slot, echo.datatype, shape, data))
        return BackendReply(tuple(tensors), {})

    def _families(self) -> tuple[MetricFamily, ...]:
        metric = Metric(labels=self._labels, value=self._copied_bytes)
        return (
            MetricFamily(
                name="input_byte_size_counter",
                text="Cumulative input byte size of all requests received by the model",
                kind="COUNTER",
                metrics=(metric,),
            ),
        )


def _prepare(source: ModelSource) -> None:
    check(source.config)
    time.sleep(whole_parameter(source.config, "creation_delay_sec"))


def check(config: ModelConfig) -> None:
    """Refuse a configuration whose inputs and outputs are not pairs.

    Raises:
        ConfigError: in Triton's words.
    """
    expect(
        len(config.inputs) == len(config.outputs),
        "model configuration must have equal input/output pairs",
    )
    for kind, prefix, tensors in (
        ("input", _INPUT, config.inputs),
        ("output", _OUTPUT, config.outputs),
    ):
        for tensor in tensors:
            expect(
                tensor.name.startswith(prefix),
                f"expected {kind} name to follow {prefix}<index> pattern, got"
                f" '{tensor.name}'",
            )
    sources = {one.name.removeprefix(_INPUT): one for one in config.inputs}
    for output in config.outputs:
        source = sources.get(output.name.removeprefix(_OUTPUT))
        if source is None:
            expect(
                condition=False, message="expected input and output indices to match"
            )
            continue
        expect(
            source.datatype is output.datatype,
            "expected input and output datatype to match, got"
            f" {source.datatype.config_name} and {output.datatype.config_name}",
        )
        expect(
            source.model_dims == output.model_dims,
            "expected input and output shape to match, got"
            f" {shape_text(source.model_dims)} and {shape_text(output.model_dims)}",
        )


def _echo(config: ModelConfig, output: str) -> _Echo:
    name = _INPUT + output.removeprefix(_OUTPUT)
    index = next(i for i, one in enumerate(config.inputs) if one.name == name)
    source = config.inputs[index]
    return _Echo(index, source.datatype, _default_dims(source))


def _default_dims(tensor: ModelInput) -> tuple[int, ...] | None:
    if not tensor.optional:
        return None
    return tuple(1 if dim < 0 else dim for dim in tensor.model_dims)


def _zeros(datatype: DataType, shape: tuple[int, ...]) -> memoryview:
    """Return a tensor of zeros, or of empty strings."""
    each = datatype.byte_size or _EMPTY_STRING_BYTES
    return memoryview(bytes(math.prod(shape) * each))
