"""The three scheduling messages, made into their dataclasses."""

from types import MappingProxyType

from protos import model_config_pb2 as pb
from services.core.datatype import DataType
from services.core.model_config_fields import FieldError
from services.core.model_config_proto_reading import (
    MICROSECOND_NS,
    at,
    data_type,
    each,
    member,
)
from services.core.model_config_scheduling import (
    DynamicBatching,
    Ensemble,
    EnsembleStep,
    QueuePolicy,
    TimeoutAction,
)
from services.core.model_config_sequences import (
    DEFAULT_SEQUENCE_IDLE_NS,
    ControlKind,
    DirectStrategy,
    InitialState,
    OldestStrategy,
    SequenceBatching,
    SequenceControl,
    SequenceControlInput,
    SequenceState,
)

_Sequences = pb.ModelSequenceBatching

LATEST_VERSION = -1
PAIR = 2


def dynamic_batching_from_proto(message: pb.ModelDynamicBatching) -> DynamicBatching:
    """Return the dataclass that says what ``message`` says.

    Raises:
        FieldError: with the path inside ``message``.
    """
    with at("default_queue_policy"):
        default_policy = _queue_policy(message.default_queue_policy)
    policies = {}
    for level, policy in message.priority_queue_policy.items():
        with at("priority_queue_policy", str(level)):
            policies[level] = _queue_policy(policy)
    return DynamicBatching(
        preferred_batch_sizes=tuple(sorted(set(message.preferred_batch_size))),
        max_queue_delay_ns=message.max_queue_delay_microseconds * MICROSECOND_NS,
        preserve_ordering=message.preserve_ordering,
        priority_levels=message.priority_levels,
        default_priority_level=message.default_priority_level,
        default_queue_policy=default_policy,
        priority_queue_policies=MappingProxyType(policies),
    )


def _queue_policy(message: pb.ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=member(TimeoutAction, message.timeout_action, "timeout_action"),
        default_timeout_ns=message.default_timeout_microseconds * MICROSECOND_NS,
        allow_timeout_override=message.allow_timeout_override,
        max_queue_size=message.max_queue_size,
    )


def ensemble_from_proto(message: pb.ModelEnsembling) -> Ensemble:
    """Return the dataclass that says what ``message`` says.

    Raises:
        FieldError: with the path inside ``message``.
    """
    return Ensemble(
        steps=each("step", message.step, _step),
        max_inflight_requests=message.max_inflight_requests,
    )


def _step(message: pb.ModelEnsembling.Step) -> EnsembleStep:
    if message.model_version < LATEST_VERSION:
        msg = f"a version is positive, or -1; got {message.model_version}"
        raise FieldError(msg, "model_version")
    return EnsembleStep(
        model_name=message.model_name,
        model_version=message.model_version if message.model_version > 0 else None,
        input_map=MappingProxyType(dict(message.input_map)),
        output_map=MappingProxyType(dict(message.output_map)),
        model_namespace=message.model_namespace,
    )


def sequence_batching_from_proto(message: _Sequences) -> SequenceBatching:
    """Return the dataclass that says what ``message`` says.

    Raises:
        FieldError: with the path inside ``message``.
    """
    idle_ns = message.max_sequence_idle_microseconds * MICROSECOND_NS
    return SequenceBatching(
        strategy=_strategy(message),
        max_sequence_idle_ns=idle_ns or DEFAULT_SEQUENCE_IDLE_NS,
        control_inputs=each("control_input", message.control_input, _control_input),
        states=each("state", message.state, _state),
        iterative_sequence=message.iterative_sequence,
    )


def _strategy(message: _Sequences) -> DirectStrategy | OldestStrategy:
    if message.HasField("oldest"):
        oldest = message.oldest
        with at("oldest"):
            return OldestStrategy(
                max_candidate_sequences=oldest.max_candidate_sequences,
                preferred_batch_sizes=tuple(sorted(set(oldest.preferred_batch_size))),
                max_queue_delay_ns=oldest.max_queue_delay_microseconds * MICROSECOND_NS,
                preserve_ordering=oldest.preserve_ordering,
            )
    direct = message.direct
    with at("direct"):
        return DirectStrategy(
            max_queue_delay_ns=direct.max_queue_delay_microseconds * MICROSECOND_NS,
            minimum_slot_utilization=direct.minimum_slot_utilization,
        )


def _control_input(message: _Sequences.ControlInput) -> SequenceControlInput:
    return SequenceControlInput(
        name=message.name, controls=each("control", message.control, _control)
    )


def _control(message: _Sequences.Control) -> SequenceControl:
    pairs: dict[str, tuple[DataType, tuple[float, ...]]] = {
        "int32_false_true": (DataType.INT32, tuple(message.int32_false_true)),
        "fp32_false_true": (DataType.FP32, tuple(message.fp32_false_true)),
        "bool_false_true": (DataType.BOOL, tuple(message.bool_false_true)),
    }
    given = {name: pair for name, pair in pairs.items() if pair[1]}
    kind = member(ControlKind, message.kind, "kind")
    if len(given) > 1:
        names = " and ".join(f"'{name}'" for name in given)
        msg = f"at most one pair (false, true) can be given, not {names}"
        raise FieldError(msg, list(given)[1])
    for name, (datatype, values) in given.items():
        if len(values) != PAIR:
            msg = f"'{name}' must have exactly 2 entries, not {len(values)}"
            raise FieldError(msg, name)
        return SequenceControl(
            kind=kind, datatype=datatype, false_true=(values[0], values[1])
        )
    if kind is ControlKind.SEQUENCE_CORRID:
        return SequenceControl(kind=kind, datatype=data_type(message.data_type))
    return SequenceControl(kind=kind, datatype=DataType.INT32)


def _state(message: _Sequences.State) -> SequenceState:
    return SequenceState(
        input_name=message.input_name,
        output_name=message.output_name,
        datatype=data_type(message.data_type),
        dims=tuple(message.dims),
        initial_states=each(
            "initial_state",
            message.initial_state,
            lambda initial: _initial_state(initial, message.input_name),
        ),
        use_same_buffer=message.use_same_buffer_for_input_output,
        use_growable_memory=message.use_growable_memory,
    )


def _initial_state(message: _Sequences.InitialState, state: str) -> InitialState:
    source = message.WhichOneof("state_data")
    if source is None:
        msg = f"initial_state setting expects state '{state}' to have state_data set"
        raise FieldError(msg)
    return InitialState(
        name=message.name,
        datatype=data_type(message.data_type),
        dims=tuple(message.dims),
        data_file=message.data_file if source == "data_file" else None,
    )
