"""Models whose states the server keeps: adapters before their backends.

A request comes with the number of its sequence; the model gets the sequence's states
as inputs, and what it puts out as states is kept for the next request.

Source: Triton's user guide, "Implicit State Management".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from services.core import byte_tensor
from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError
from services.core.model_config_sequences import SequenceState
from services.core.sequence_state import NUMBER_INPUT
from services.worker.backend import (
    AnyBackend,
    Backend,
    DecoupledBackend,
    ModelSource,
    RequestBackend,
    SelfTelling,
    Tensors,
)
from services.worker.initial_states import initial_states
from services.worker.sequence_states import SequenceStates, State, States
from services.worker.stateful_requests import StatefulRequestBackend

_Shapes: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """The rows of a batch whose states have the same shapes: one execution."""

    rows: list[int]
    shapes: _Shapes


def with_states(backend: AnyBackend, source: ModelSource) -> AnyBackend:
    """Return ``backend``, with its states kept before it if the model has some.

    Raises:
        ConfigError: an initial state cannot be read, or the model is decoupled.
    """
    declared = source.config.states
    if not declared:
        return backend
    first = initial_states(source)
    if isinstance(backend, DecoupledBackend):
        text = f"model '{source.config.name}' is decoupled: it cannot have states"
        raise ConfigError(text)
    if isinstance(backend, RequestBackend):
        return StatefulRequestBackend(backend, source.config, first)
    is_batched = source.config.max_batch_size > 0
    return StatefulBackend(backend, declared, first, is_batched=is_batched)


class StatefulBackend:
    """One instance of a model with states that takes arrays; see Backend.

    ``states`` is where the sequences of the batch at hand have theirs.
    """

    def __init__(
        self,
        backend: Backend,
        declared: Sequence[SequenceState],
        first: States,
        *,
        is_batched: bool,
    ) -> None:
        """Keep the states of ``backend``, which begin as ``first``."""
        self._backend = backend
        self._declared = tuple(declared)
        self._first = first
        self._is_batched = is_batched
        self.states = SequenceStates()

    def execute(self, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
        """Run one batch; see Backend.

        Rows whose states differ in shape are executed one after the other.

        Raises:
            BackendError: also if the model puts out another state than declared, or
                if rows that were executed apart cannot be answered together.
        """
        given = dict(inputs)
        numbers = _numbers(given.pop(NUMBER_INPUT, None), given, self._is_batched)
        current = [self.states.of(number) or self._first for number in numbers]
        names = list(output_names)
        names += [s.output_name for s in self._declared if s.output_name not in names]
        shares = _shares(current)
        found: dict[int, States] = {}
        parts = []
        for share in shares:
            outputs = self._execute(
                given, names, current, share, is_whole=len(shares) == 1
            )
            found.update(self._found(outputs, share.rows))
            # The next execution may use their memory.
            if len(shares) > 1:
                outputs = {name: array.copy() for name, array in outputs.items()}
            parts.append(outputs)
        answer = parts[0]
        if len(parts) > 1:
            order = np.argsort([row for share in shares for row in share.rows])
            answer = _joined(parts, output_names, order)
        for row, states in found.items():
            if numbers[row]:
                self.states.keep(numbers[row], states)
        return answer

    def is_ready(self) -> bool:
        """Ask the model, if it knows; see SelfTelling."""
        return not isinstance(self._backend, SelfTelling) or self._backend.is_ready()

    def unload(self) -> None:
        """Release everything."""
        self._backend.unload()

    def _execute(
        self,
        inputs: Mapping[str, NDArray[Any]],
        names: Sequence[str],
        current: Sequence[States],
        share: _Share,
        *,
        is_whole: bool,
    ) -> Tensors:
        own = (
            dict(inputs)
            if is_whole
            else {name: array[share.rows] for name, array in inputs.items()}
        )
        for k, declared in enumerate(self._declared):
            raws = [current[row][k].data for row in share.rows]
            rows = (len(raws),) if self._is_batched else ()
            shape = (*rows, *share.shapes[k])
            own[declared.input_name] = _array(b"".join(raws), declared.datatype, shape)
        return self._backend.execute(own, names)

    def _found(self, outputs: Tensors, rows: Sequence[int]) -> dict[int, States]:
        """Return the states that the model put out, by row of the batch."""
        blocks = [self._block(outputs, state, len(rows)) for state in self._declared]
        return {
            row: tuple(
                State(block.shape[1:], _raw(block[i], state.datatype))
                for block, state in zip(blocks, self._declared, strict=True)
            )
            for i, row in enumerate(rows)
        }

    def _block(self, outputs: Tensors, state: SequenceState, rows: int) -> NDArray[Any]:
        """Return one state of all rows, row after row.

        Raises:
            BackendError: it is missing, or not as it was declared.
        """
        name = state.output_name
        array = outputs.get(name)
        if array is None:
            raise BackendError(f"the model did not produce state output '{name}'")
        if array.dtype != state.datatype.numpy_dtype:
            text = (
                f"state output '{name}' is {array.dtype} where the configuration says "
                f"{state.datatype.value}"
            )
            raise BackendError(text)
        block = array if self._is_batched else array[np.newaxis]
        fits = block.shape[:1] == (rows,) and state.fits(block.shape[1:])
        if not fits:
            text = (
                f"state output '{name}' has shape {list(array.shape)} where the "
                f"configuration says {list(state.dims)} for each of {rows} rows"
            )
            raise BackendError(text)
        return block


def _numbers(
    array: NDArray[Any] | None,
    inputs: Mapping[str, NDArray[Any]],
    is_batched: bool,  # noqa: FBT001
) -> list[int]:
    """Return the number of each row's sequence; zeros for a warm-up, which has none."""
    if array is not None:
        return [int(number) for number in array.reshape(-1)]
    shape = next(iter(inputs.values())).shape if inputs and is_batched else (1,)
    return [0] * shape[0]


def _shares(current: Sequence[States]) -> list[_Share]:
    """Return the rows of a batch by the shapes of their states."""
    by_shapes: dict[_Shapes, list[int]] = {}
    for row, states in enumerate(current):
        shapes = tuple(state.shape for state in states)
        by_shapes.setdefault(shapes, []).append(row)
    return [_Share(rows=rows, shapes=shapes) for shapes, rows in by_shapes.items()]


def _joined(
    parts: Sequence[Tensors], names: Sequence[str], order: NDArray[np.intp]
) -> Tensors:
    """Return the outputs of several executions in the order of the batch's rows.

    Raises:
        BackendError: their rows differ in shape.
    """
    joined = {}
    for name in names:
        arrays = [part[name] for part in parts if name in part]
        if len(arrays) < len(parts):
            continue  # whoever asked for it will miss it
        if len({array.shape[1:] for array in arrays}) > 1:
            text = f"output '{name}' differs in shape from sequence to sequence"
            raise BackendError(text)
        joined[name] = np.concatenate(arrays)[order]
    return joined


def _array(raw: bytes, datatype: DataType, shape: tuple[int, ...]) -> NDArray[Any]:
    if datatype.byte_size is None:
        elements = byte_tensor.decode(raw)
        array = np.empty(len(elements), object)
        array[:] = elements
        return array.reshape(shape)
    return np.frombuffer(raw, datatype.numpy_dtype).reshape(shape)


def _raw(array: NDArray[Any], datatype: DataType) -> bytes:
    if datatype.byte_size is None:
        return byte_tensor.encode(array.reshape(-1).tolist())
    return array.tobytes()
