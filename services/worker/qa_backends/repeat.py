"""The backend "repeat": one response for each element of IN.

Response i has OUT = IN[i] and IDX = i and comes DELAY[i] milliseconds after the one
before; the next request is taken WAIT milliseconds after this one.

Source: triton-inference-server/repeat_backend.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.core.datatype import DataType
from services.core.errors import InvalidRequestError, StoppingError
from services.core.model_config import ModelConfig
from services.worker import wire
from services.worker.backend import (
    BackendCall,
    BackendFailure,
    BackendReply,
    Deliver,
    InstancePlace,
    ModelSource,
    ReplyTensor,
    Runtime,
)
from services.worker.qa_backends.expectations import (
    expect,
    expect_decoupled,
    expect_names,
    shape_text,
    tensors_of,
)
from services.worker.qa_backends.response_threads import ResponseThreads
from services.worker.qa_backends.runtime import QaRuntime

_IN: Final = 0
_DELAY: Final = 1
_WAIT: Final = 2
_MS_PER_S: Final = 1000
_DATATYPES: Final = {
    "IN": DataType.INT32,
    "DELAY": DataType.UINT32,
    "WAIT": DataType.UINT32,
    "OUT": DataType.INT32,
    "IDX": DataType.UINT32,
}


def runtime() -> Runtime:
    """Return the way to load models of this backend."""
    return QaRuntime("repeat", lambda source: check(source.config), Repeat)


class Repeat:
    """One instance; see DecoupledBackend."""

    def __init__(
        self, _source: ModelSource, place: InstancePlace, _number: int
    ) -> None:
        """Begin without a request."""
        self._threads = ResponseThreads(place.name)

    def execute_decoupled(
        self,
        calls: Sequence[BackendCall],
        deliver: Deliver,
        cancel_with: Callable[[Callable[[int], None]], None],
    ) -> list[BackendFailure | None]:
        """Begin to answer the only request of a batch."""
        cancel_with(_go_on)
        failures: list[BackendFailure | None] = []
        for number, call in enumerate(calls):
            tensors = {tensor.slot: tensor for tensor in call.inputs}
            shapes = tensors[_IN].shape, tensors[_DELAY].shape
            if shapes[0] != shapes[1]:
                text = (
                    "expected IN and DELAY shape to match, got"
                    f" {shape_text(shapes[0])} and {shape_text(shapes[1])}"
                )
                failures.append(
                    BackendFailure(*wire.error_status(InvalidRequestError(text)))
                )
                continue
            values = np.frombuffer(tensors[_IN].data, "<i4").copy()
            delays_ms = np.frombuffer(tensors[_DELAY].data, "<u4").copy()
            wait_ms = np.frombuffer(tensors[_WAIT].data, "<u4")[0]
            self._threads.start(
                partial(self._respond, partial(deliver, number), values, delays_ms)
            )
            self._threads.pause(wait_ms / _MS_PER_S)
            failures.append(None)
        return failures

    def unload(self) -> None:
        """Return when no response is under way."""
        self._threads.close()

    def _respond(
        self,
        respond: Callable[..., None],
        values: NDArray[np.int32],
        delays_ms: NDArray[np.uint32],
    ) -> None:
        for index, delay_ms in enumerate(delays_ms):
            if not self._threads.pause(delay_ms / _MS_PER_S):
                respond(unloaded(), True)  # noqa: FBT003 - final
                return
            out = memoryview(values[index].tobytes())
            idx = memoryview(np.uint32(index).tobytes())
            tensors = (
                ReplyTensor(0, DataType.INT32, (1,), out),
                ReplyTensor(1, DataType.UINT32, (1,), idx),
            )
            respond(BackendReply(tensors, {}), False)  # noqa: FBT003 - more come
        respond(None, True)  # noqa: FBT003 - final


def check(config: ModelConfig) -> None:
    """Refuse another configuration than the one that this backend is for.

    Raises:
        ConfigError: in Triton's words.
    """
    expect(
        config.max_batch_size == 0,
        "repeat backend only supports models with max_batch_size == 0",
    )
    expect_decoupled(config, "repeat")
    expect_names(config.inputs, "input", ("IN", "DELAY", "WAIT"))
    expect_names(config.outputs, "output", ("OUT", "IDX"))
    dims = {one.name: one.dims for one in tensors_of(config)}
    expect(
        len(dims["IN"]) == 1,
        f"expected IN shape to have one dimension, got {shape_text(dims['IN'])}",
    )
    expect(
        dims["IN"] == dims["DELAY"],
        "expected IN and DELAY shape to match, got"
        f" {shape_text(dims['IN'])} and {shape_text(dims['DELAY'])}",
    )
    for name in ("WAIT", "OUT", "IDX"):
        expect(
            dims[name] == (1,),
            f"expected {name} shape to be [1], got {shape_text(dims[name])}",
        )
    for tensor in tensors_of(config):
        wanted = _DATATYPES[tensor.name]
        expect(
            tensor.datatype is wanted,
            f"expected {tensor.name} datatype to be {wanted.value}, got"
            f" {tensor.datatype.config_name}",
        )


def unloaded() -> BackendFailure:
    """Return what clients are told whose responses an unload has cut off."""
    return BackendFailure(*wire.error_status(StoppingError("the model was unloaded")))


def _go_on(_call: int) -> None:
    """Take no notice of a client that leaves, as Triton's backend does."""
