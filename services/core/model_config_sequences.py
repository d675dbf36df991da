"""Sequences: which requests belong together, and what the model is told of it."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from services.core.datatype import DataType
from services.core.model_config_fields import (
    VARIABLE,
    FieldError,
    require_dims,
    require_name,
    require_preferred_sizes,
)

DEFAULT_SEQUENCE_IDLE_NS: Final = 1_000_000_000

_CORRELATION_ID_DATATYPES: Final = (
    DataType.UINT64,
    DataType.INT64,
    DataType.UINT32,
    DataType.INT32,
    DataType.BYTES,
)


class ControlKind(enum.Enum):
    """What a control tensor tells; values are the schema's numbers."""

    SEQUENCE_START = 0
    SEQUENCE_READY = 1
    SEQUENCE_END = 2
    SEQUENCE_CORRID = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceControl:
    """A value that tells the model where in its sequence a request stands.

    Attributes:
        kind: What it tells.
        datatype: INT32, FP32 or BOOL; for SEQUENCE_CORRID a 32 or 64 bit
            integer, or BYTES.
        false_true: The two values of a flag; None for SEQUENCE_CORRID, whose
            value is the correlation id itself.
    """

    kind: ControlKind
    datatype: DataType
    false_true: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        name = f"CONTROL_{self.kind.name}"
        if self.kind is not ControlKind.SEQUENCE_CORRID:
            if self.false_true is None:
                msg = (
                    "must specify one of 'int32_false_true', 'fp32_false_true' and "
                    f"'bool_false_true' for {name}"
                )
                raise FieldError(msg)
        elif self.false_true is not None:
            raise FieldError(f"must not specify a pair (false, true) for {name}")
        elif self.datatype not in _CORRELATION_ID_DATATYPES:
            allowed = ", ".join(d.config_name for d in _CORRELATION_ID_DATATYPES)
            msg = f"unexpected data type for {name}; allowed data types are {allowed}"
            raise FieldError(msg, "data_type")


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceControlInput:
    """A model input that carries controls.

    Attributes:
        name: The model's input.
        controls: What it carries; one control in nearly every model.
    """

    name: str
    controls: tuple[SequenceControl, ...]

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        require_name(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialState:
    """A state's value when its sequence begins.

    Attributes:
        name: Only for messages.
        datatype: Of the state.
        dims: Of the value, without the batch dimension; no variable one.
        data_file: Raw tensor bytes, below <model>/initial_state; None: zeros.
    """

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    data_file: str | None = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        require_dims(self.dims, "dims")


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceState:
    """A tensor handed from one request of a sequence to the next.

    Attributes:
        input_name: The model input it enters by.
        output_name: The model output it leaves by.
        datatype: Of its elements.
        dims: Without the batch dimension; -1 is variable.
        initial_states: Its value at first, one at most; (): zeros.
        use_same_buffer: Triton's wish to update it in place. Accepted: a backend
            that can does, and what a model sees is the same.
        use_growable_memory: Triton's wish to grow its buffer instead of replacing
            it. Accepted likewise, on every device.
    """

    input_name: str
    output_name: str
    datatype: DataType
    dims: tuple[int, ...]
    initial_states: tuple[InitialState, ...] = ()
    use_same_buffer: bool = False
    use_growable_memory: bool = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        require_name(self.input_name, "input_name")
        require_name(self.output_name, "output_name")
        require_dims(self.dims, "dims")
        if self.use_growable_memory and not self.use_same_buffer:
            msg = (
                "In order to 'use_growable_memory', you must also enable "
                "'use_same_buffer_for_input_output' for state input name "
                f"'{self.input_name}'."
            )
            raise FieldError(msg, "use_growable_memory")
        if len(self.initial_states) > 1:
            msg = (
                f"initial_state field for state input '{self.input_name}' must "
                "contain exactly one or zero element. Found "
                f"'{len(self.initial_states)}' elements."
            )
            raise FieldError(msg, "initial_state")
        for initial in self.initial_states:
            self._require_initial(initial)

    @property
    def initial_dims(self) -> tuple[int, ...]:
        """Its shape at first, one row: what is variable begins as 1."""
        for initial in self.initial_states:
            return initial.dims
        return tuple(1 if dim == VARIABLE else dim for dim in self.dims)

    def fits(self, shape: Sequence[int]) -> bool:
        """Return whether a value may have this shape, one row."""
        return len(shape) == len(self.dims) and all(
            dim in (VARIABLE, size) for size, dim in zip(shape, self.dims, strict=True)
        )

    def _require_initial(self, initial: InitialState) -> None:
        """Refuse a first value that the state could not have.

        Source: the checks and the words of Triton's sequence batcher.
        """
        name, path = self.input_name, ("initial_state", 0)
        if initial.datatype is not self.datatype:
            msg = (
                f"The data type used for 'initial_state' field of state '{name}' does "
                "not match the state data type."
            )
            raise FieldError(msg, *path, "data_type")
        if not initial.name:
            msg = (
                "Field 'name' must be set when using initial_state for state input "
                f"'{name}'."
            )
            raise FieldError(msg, *path, "name")
        if len(initial.dims) != len(self.dims):
            msg = (
                "Number of dimensions in 'initial_state' doesn't match the size of "
                f"'state' dimensions for state input '{name}'. "
                f"{len(initial.dims)} != {len(self.dims)}"
            )
            raise FieldError(msg, *path, "dims")
        for i, (dim, declared) in enumerate(zip(initial.dims, self.dims, strict=True)):
            if dim == VARIABLE:
                msg = (
                    f"'initial_state' field for state input name '{name}' contains "
                    "variable dimensions."
                )
                raise FieldError(msg, *path, "dims", i)
            if declared not in (VARIABLE, dim):
                msg = (
                    f"'initial_state' dim for input name '{name}' doesn't match "
                    f"'state' dim description. {dim} != {declared}"
                )
                raise FieldError(msg, *path, "dims", i)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectStrategy:
    """Every live sequence owns a row of a batch.

    Attributes:
        max_queue_delay_ns: How long a batch waits for more rows.
        minimum_slot_utilization: Share of rows, 0 to 1, that need not wait.
    """

    max_queue_delay_ns: int = 0
    minimum_slot_utilization: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        if not 0.0 <= self.minimum_slot_utilization <= 1.0:
            msg = (
                "sequence batching minimum slot utilization must be in range (0.0, 1.0]"
            )
            raise FieldError(msg, "minimum_slot_utilization")


@dataclass(frozen=True, slots=True, kw_only=True)
class OldestStrategy:
    """Live sequences queue for the dynamic batcher, the oldest first.

    Attributes:
        max_candidate_sequences: Live sequences for each instance.
        preferred_batch_sizes: Row counts worth sending at once, ascending.
        max_queue_delay_ns: How long the oldest request may wait for company.
        preserve_ordering: Answer in the order of arrival.
    """

    max_candidate_sequences: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_ns: int = 0
    preserve_ordering: bool = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        require_preferred_sizes(self.preferred_batch_sizes, "sequence batching")
        if self.max_candidate_sequences < 0:
            msg = "'max_candidate_sequences' must be non-negative"
            raise FieldError(msg, "max_candidate_sequences")


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBatching:
    """Requests with one correlation id go to one instance, in order.

    Attributes:
        strategy: How live sequences share batches; Direct if none is named.
        max_sequence_idle_ns: Silence after which a sequence loses its place.
        control_inputs: Told to the model with each request; no kind twice, no
            input twice.
        states: Kept between the requests of a sequence; no input and no output
            twice.
        iterative_sequence: The model itself may put a request back.
    """

    strategy: DirectStrategy | OldestStrategy = field(default_factory=DirectStrategy)
    max_sequence_idle_ns: int = DEFAULT_SEQUENCE_IDLE_NS
    control_inputs: tuple[SequenceControlInput, ...] = ()
    states: tuple[SequenceState, ...] = ()
    iterative_sequence: bool = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        kinds: set[ControlKind] = set()
        names: set[str] = set()
        for i, control_input in enumerate(self.control_inputs):
            if control_input.name in names:
                msg = (
                    f"sequence batching control tensor '{control_input.name}' is "
                    "specified for multiple control kinds"
                )
                raise FieldError(msg, "control_input", i)
            names.add(control_input.name)
            for j, control in enumerate(control_input.controls):
                if control.kind in kinds:
                    kind = f"CONTROL_{control.kind.name}"
                    msg = f"sequence batching specifies multiple {kind} tensors"
                    raise FieldError(msg, "control_input", i, "control", j, "kind")
                kinds.add(control.kind)
        self._require_unique_states(names)

    def _require_unique_states(self, control_names: set[str]) -> None:
        inputs: set[str] = set()
        outputs: set[str] = set()
        for i, state in enumerate(self.states):
            if state.input_name in control_names:
                msg = f"'{state.input_name}' is a control input, and a state input"
                raise FieldError(msg, "state", i, "input_name")
            if state.input_name in inputs:
                msg = f"State input name '{state.input_name}' specified more than once."
                raise FieldError(msg, "state", i, "input_name")
            if state.output_name in outputs:
                msg = (
                    f"State output name '{state.output_name}' specified more than once."
                )
                raise FieldError(msg, "state", i, "output_name")
            inputs.add(state.input_name)
            outputs.add(state.output_name)
