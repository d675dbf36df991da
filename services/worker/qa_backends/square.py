"""The backend "square": n responses, each OUT = n, for IN = n.

Source: triton-inference-server/square_backend. Its parameters
``CUSTOM_INFER_DELAY_NS`` and ``CUSTOM_OUTPUT_DELAY_NS`` (before each response),
``CUSTOM_CANCEL_DELAY_NS`` (in place of these once the client has left),
``CUSTOM_EMPTY_COUNT`` (so many of the n, the last, are not sent) and
``CUSTOM_FAIL_COUNT`` (so many before those are errors). One that is no number is 0.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from services.core.datatype import DataType
from services.core.errors import ConfigError, InvalidRequestError
from services.core.model_config import ModelConfig
from services.worker import wire
from services.worker.backend import (
    BackendAnswer,
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
    whole_parameter,
)
from services.worker.qa_backends.repeat import unloaded
from services.worker.qa_backends.response_threads import ResponseThreads
from services.worker.qa_backends.runtime import QaRuntime

_NS_PER_S: Final = 1e9
_UNKNOWN: Final = 2  # google.rpc.Code


def runtime() -> Runtime:
    """Return the way to load models of this backend."""
    return QaRuntime("square", lambda source: check(source.config), Square)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Behaviour:
    """What the model's parameters ask for."""

    infer_delay_s: float
    output_delay_s: float
    cancel_delay_s: float
    fail_count: int
    empty_count: int

    @classmethod
    def of(cls, config: ModelConfig) -> "_Behaviour":
        def number(name: str) -> int:
            try:
                return whole_parameter(config, f"CUSTOM_{name}")
            except ConfigError:
                return 0

        return cls(
            infer_delay_s=number("INFER_DELAY_NS") / _NS_PER_S,
            output_delay_s=number("OUTPUT_DELAY_NS") / _NS_PER_S,
            cancel_delay_s=number("CANCEL_DELAY_NS") / _NS_PER_S,
            fail_count=number("FAIL_COUNT"),
            empty_count=number("EMPTY_COUNT"),
        )

    def answer(
        self, index: int, count: int, success: BackendReply
    ) -> BackendAnswer | None:
        """Return the response of this index among ``count``; None: it is empty."""
        if index >= count - self.empty_count:
            return None
        if index >= count - self.empty_count - self.fail_count:
            return BackendFailure(_UNKNOWN, "simulated failure", is_answer=True)
        return success


class Square:
    """One instance; see DecoupledBackend."""

    def __init__(self, source: ModelSource, place: InstancePlace, _number: int) -> None:
        """Begin without a request."""
        self._behaviour = _Behaviour.of(source.config)
        self._threads = ResponseThreads(place.name)

    def execute_decoupled(
        self,
        calls: Sequence[BackendCall],
        deliver: Deliver,
        cancel_with: Callable[[Callable[[int], None]], None],
    ) -> list[BackendFailure | None]:
        """Begin to answer a batch, each request in a thread of its own."""
        cancelled = [threading.Event() for _ in calls]
        cancel_with(lambda number: cancelled[number].set())
        failures: list[BackendFailure | None] = []
        for number, call in enumerate(calls):
            (tensor,) = call.inputs
            count = int(np.frombuffer(tensor.data, "<i4")[0])
            refusal = _refusal(tensor.shape, count)
            if refusal is not None:
                error = InvalidRequestError(refusal)
                failures.append(BackendFailure(*wire.error_status(error)))
                continue
            self._threads.start(
                partial(
                    self._respond,
                    partial(deliver, number),
                    cancelled[number],
                    count,
                    len(tensor.shape),
                )
            )
            failures.append(None)
        return failures

    def unload(self) -> None:
        """Return when no response is under way."""
        self._threads.close()

    def _respond(
        self,
        respond: Callable[..., None],
        cancelled: threading.Event,
        count: int,
        rank: int,
    ) -> None:
        behaviour, pause = self._behaviour, self._threads.pause
        data = memoryview(np.int32(count).tobytes())
        success = BackendReply((ReplyTensor(0, DataType.INT32, (1,) * rank, data),), {})
        for index in range(count):
            if cancelled.is_set():
                pause(behaviour.cancel_delay_s)
                break
            answer = behaviour.answer(index, count, success)
            output_delay_s = 0.0 if answer is None else behaviour.output_delay_s
            if not (pause(behaviour.infer_delay_s) and pause(output_delay_s)):
                respond(unloaded(), True)  # noqa: FBT003 - final
                return
            respond(answer, False)  # noqa: FBT003 - more may come
        respond(None, True)  # noqa: FBT003 - final


def check(config: ModelConfig) -> None:
    """Refuse another configuration than the one that this backend is for.

    Raises:
        ConfigError: in Triton's words.
    """
    expect_decoupled(config, "square")
    expect_names(config.inputs, "input", ("IN",))
    expect_names(config.outputs, "output", ("OUT",))
    for tensor in tensors_of(config):
        expect(
            tensor.dims == (1,),
            f"expected {tensor.name} shape to be [1], got {shape_text(tensor.dims)}",
        )
        expect(
            tensor.datatype is DataType.INT32,
            f"expected {tensor.name} datatype to be INT32, got"
            f" {tensor.datatype.config_name}",
        )


def _refusal(shape: tuple[int, ...], count: int) -> str | None:
    """Return why a request cannot be answered; None if it can."""
    if shape != (1,) * len(shape):
        return "unexpected shape for IN input"
    if count < 0:
        return f"expected IN to be at least 0, got {count}"
    return None
