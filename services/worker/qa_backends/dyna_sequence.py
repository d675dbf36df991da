"""The backend "dyna_sequence": adds the values of a sequence up, a sum for each CORRID.

START begins a sum anew, END adds CORRID to it and forgets it afterwards; without
READY nothing happens.

Source: triton-inference-server/server, src/test/dyna_sequence, and its parameter
``execute_delay_ms`` (before each batch).
"""

import time
from collections.abc import Sequence
from typing import Final

from services.core import byte_tensor
from services.core.datatype import DataType
from services.core.errors import InvalidRequestError, ServingError
from services.core.model_config import ModelConfig
from services.worker import wire
from services.worker.backend import (
    BackendAnswer,
    BackendCall,
    BackendFailure,
    BackendReply,
    InstancePlace,
    ModelSource,
    Runtime,
)
from services.worker.qa_backends import accumulators
from services.worker.qa_backends.expectations import (
    expect,
    expect_cpu,
    whole_parameter,
)
from services.worker.qa_backends.runtime import QaRuntime

_MS_PER_S: Final = 1000
_CONTROLS: Final = ("START", "END", "READY", "CORRID")


def runtime() -> Runtime:
    """Return the way to load models of this backend."""
    return QaRuntime("dyna_sequence", check, DynaSequenceSums)


class DynaSequenceSums:
    """One instance; see RequestBackend."""

    def __init__(self, source: ModelSource, place: InstancePlace, _number: int) -> None:
        """Begin without a sequence."""
        expect_cpu(source, place, "dyna_sequence")
        config = source.config
        self._delay_s = whole_parameter(config, "execute_delay_ms") / _MS_PER_S
        self._reader = accumulators.StepReader(config)
        self._datatype = corrid_datatype(config)
        self._sums: dict[int, int] = {}

    def execute_requests(self, calls: Sequence[BackendCall]) -> list[BackendAnswer]:
        """Run one batch."""
        if self._delay_s:
            time.sleep(self._delay_s)
        return [self._answer(call) for call in calls]

    def unload(self) -> None:
        """Nothing is held."""

    def _answer(self, call: BackendCall) -> BackendAnswer:
        try:
            step = self._reader.read(call)
            corrid = correlation_number(step.controls["CORRID"], self._datatype)
        except ServingError as error:
            return BackendFailure(*wire.error_status(error))
        if not step.is_set("READY"):
            return BackendReply((), {})
        total = step.values
        if not step.is_set("START"):
            total += self._sums.get(corrid, 0)
        if step.is_set("END"):
            total = accumulators.int32(total + corrid)
            self._sums.pop(corrid, None)
        else:
            total = self._sums[corrid] = accumulators.int32(total)
        return accumulators.reply(step, total, call.outputs)


def check(source: ModelSource) -> None:
    """Refuse another configuration than the one that this backend is for.

    Raises:
        ConfigError: in Triton's words.
    """
    accumulators.check_controls(
        source.config,
        _CONTROLS,
        "'START', 'END, 'READY' and 'CORRID' must be configured as the control inputs",
    )
    expect(
        corrid_datatype(source.config) in (DataType.UINT64, DataType.BYTES),
        "model CORRID control input must have TYPE_UINT64 or TYPE_STRING data-type",
    )
    accumulators.check_tensors(source.config)


def corrid_datatype(config: ModelConfig) -> DataType | None:
    """Return the datatype of CORRID; None without such a control."""
    batching = config.sequence_batching
    for control_input in batching.control_inputs if batching is not None else ():
        if control_input.name == "CORRID":
            return control_input.controls[0].datatype
    return None


def correlation_number(raw: bytes, datatype: DataType | None) -> int:
    """Return CORRID as a number.

    Raises:
        InvalidRequestError: it is a text that begins with none.
    """
    if datatype is not DataType.BYTES:
        return int.from_bytes(raw, "little")
    (text,) = byte_tensor.decode(raw)
    digits = text.decode(errors="replace").lstrip()
    end = 1 if digits[:1] in ("+", "-") else 0
    while digits[end : end + 1].isdigit():
        end += 1
    try:
        return int(digits[:end])
    except ValueError:
        message = (
            "dyna sequence backend expects correlation ID to be decodable into an"
            " integer"
        )
        raise InvalidRequestError(message) from None
