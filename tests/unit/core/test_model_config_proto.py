from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from protos import model_config_pb2 as pb
from services.core import model_config as mc
from services.core.datatype import DataType
from services.core.model_config import FieldError
from services.core.model_config_proto import from_proto

SMALL = """
name: "m"
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
"""

COMMON = """
name: "m" platform: "p" backend: "b" runtime: "r" max_batch_size: 8
version_policy { %s }
input {
  name: "x" data_type: TYPE_INT32 format: FORMAT_NHWC dims: [ 2, 2, 3 ]
  reshape { shape: [ 4, 3 ] } is_shape_tensor: true allow_ragged_batch: true
  optional: true is_non_linear_format_io: true
}
output {
  name: "y" data_type: TYPE_STRING dims: [ -1, 2, 3 ] reshape { shape: [ -1, 6 ] }
  label_filename: "l" is_shape_tensor: true is_non_linear_format_io: true
}
batch_input {
  kind: BATCH_ITEM_SHAPE target_name: "t" data_type: TYPE_INT32 source_input: "x"
}
batch_output { target_name: "y" source_input: "x" }
optimization {
  graph { level: 1 } priority: PRIORITY_MAX
  cuda {
    graphs: true busy_wait_events: true output_copy_stream: true
    graph_spec {
      batch_size: 1 input { key: "x" value { dim: 3 } }
      graph_lower_bound { batch_size: 1 input { key: "x" value { dim: 2 } } }
    }
  }
  execution_accelerators {
    gpu_execution_accelerator { name: "g" parameters { key: "k" value: "v" } }
    cpu_execution_accelerator { name: "c" parameters { key: "k" value: "v" } }
  }
  input_pinned_memory { enable: true } output_pinned_memory { enable: true }
  gather_kernel_buffer_threshold: 1 eager_batching: true
}
instance_group {
  name: "g" kind: KIND_GPU count: 2 gpus: [ 0, 2 ] profile: "1" passive: true
  host_policy: "h" secondary_devices { device_id: 1 }
  rate_limiter { resources { name: "R" global: true count: 1 } priority: 1 }
}
default_model_filename: "f"
cc_model_filenames { key: "7.5" value: "c" }
metric_tags { key: "k" value: "v" }
parameters { key: "k" value { string_value: "v" } }
model_warmup {
  name: "w" batch_size: 1 count: 2
  inputs { key: "x" value { data_type: TYPE_INT32 dims: 2 %s } }
}
model_operations { op_library_filename: "o" }
model_transaction_policy { decoupled: true }
model_repository_agents { agents { name: "a" parameters { key: "k" value: "v" } } }
response_cache { enable: true }
model_metrics {
  metric_control {
    metric_identifier { family: "f" } histogram_options { buckets: [ 1, 2 ] }
  }
}
"""

DYNAMIC = """
dynamic_batching {
  preferred_batch_size: [ 2, 5 ] max_queue_delay_microseconds: 7
  priority_levels: 3 default_priority_level: 2
  default_queue_policy {
    timeout_action: DELAY default_timeout_microseconds: 1
    allow_timeout_override: true max_queue_size: 1
  }
  priority_queue_policy { key: 3 value { max_queue_size: 1 } }
}
"""

IN_ORDER = "dynamic_batching { preserve_ordering: true }"

SEQUENCES = """
sequence_batching {
  %s
  max_sequence_idle_microseconds: 5 iterative_sequence: true
  control_input {
    name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 2 ] }
  }
  control_input {
    name: "E" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 2 ] }
  }
  control_input {
    name: "R" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ 0, 1 ] }
  }
  control_input {
    name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }
  }
  state {
    input_name: "i" output_name: "o" data_type: TYPE_INT32 dims: -1
    initial_state { name: "n" data_type: TYPE_INT32 dims: 2 data_file: "d" }
    use_same_buffer_for_input_output: true use_growable_memory: true
  }
  state {
    input_name: "j" output_name: "p" data_type: TYPE_INT32 dims: -1
    initial_state { name: "z" data_type: TYPE_INT32 dims: 2 zero_data: true }
  }
}
"""

DIRECT = "direct { max_queue_delay_microseconds: 1 minimum_slot_utilization: 0.5 }"
OLDEST = """oldest {
  max_candidate_sequences: 1 preferred_batch_size: 2
  max_queue_delay_microseconds: 1 preserve_ordering: true
}"""

ENSEMBLE = """
ensemble_scheduling {
  step {
    model_name: "a" model_version: 3 model_namespace: "n"
    input_map { key: "k" value: "v" } output_map { key: "k" value: "v" }
  }
  max_inflight_requests: 1
}
"""

LATEST = "latest { num_versions: 2 }"
SPECIFIC = "specific { versions: [ 1, 3 ] }"

FULL = [
    COMMON % (LATEST, 'input_data_file: "d"') + DYNAMIC,
    COMMON % (SPECIFIC, "zero_data: true") + IN_ORDER,
    COMMON % ("all {}", "random_data: true") + SEQUENCES % DIRECT,
    COMMON % (LATEST, "random_data: true") + SEQUENCES % OLDEST,
    COMMON % (LATEST, "random_data: true") + ENSEMBLE,
]

# Read as "this one of the oneof is meant"; whether true or false says nothing.
MARKERS = {"zero_data", "random_data"}
# Enums of one value, which is the default: nothing to write, nothing to change.
SINGLE_VALUED = {"BatchOutput.kind", "SecondaryDevice.kind"}


def parsed(text: str) -> pb.ModelConfig:
    return text_format.Parse(text, pb.ModelConfig())


def changed(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401
    if field.enum_type is not None:
        numbers = field.enum_type.values_by_number
        return next(number for number in numbers if number != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "0"
    return value + 1


def leaves(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    for field, value in message.ListFields():
        if field.message_type is None:
            yield message, field
        elif field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is None:
                yield message, field
            else:
                for entry in value.values():
                    yield from leaves(entry)
        else:
            for part in value if field.is_repeated else [value]:
                yield from leaves(part)


def change(owner: Message, field: FieldDescriptor) -> None:
    value = getattr(owner, field.name)
    if field.message_type is not None:
        value["k2"] = "v2"
    elif field.is_repeated:
        value[-1] = changed(field, value[-1])
    else:
        setattr(owner, field.name, changed(field, value))


def outcome(message: pb.ModelConfig) -> mc.ModelConfig | str:
    try:
        return from_proto(message)
    except FieldError as error:
        return str(error)


def all_fields(descriptor: Any) -> Iterator[str]:  # noqa: ANN401
    for field in descriptor.fields:
        if not descriptor.GetOptions().map_entry:
            yield f"{descriptor.name}.{field.name}"
        if field.message_type is not None:
            yield from all_fields(field.message_type)


@pytest.mark.parametrize("text", FULL)
def test_every_written_field_changes_what_code_reads(text: str) -> None:
    before = outcome(parsed(text))
    count = len(list(leaves(parsed(text))))
    assert count >= 75
    for i in range(count):
        message = parsed(text)
        owner, field = list(leaves(message))[i]
        label = f"{owner.DESCRIPTOR.name}.{field.name}"
        if field.name in MARKERS:
            continue
        change(owner, field)
        assert outcome(message) != before, label


def test_the_full_examples_together_write_every_field_of_the_schema() -> None:
    written = set()
    for text in FULL:
        assert isinstance(outcome(parsed(text)), mc.ModelConfig)
        written |= set(written_fields(parsed(text)))
    unwritten = set(all_fields(pb.ModelConfig.DESCRIPTOR)) - written
    assert unwritten <= SINGLE_VALUED


def written_fields(message: Message) -> Iterator[str]:
    for field, value in message.ListFields():
        yield f"{message.DESCRIPTOR.name}.{field.name}"
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            for entry in value.values():
                if isinstance(entry, Message):
                    yield from written_fields(entry)
        else:
            for part in value if field.is_repeated else [value]:
                yield from written_fields(part)


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (mc.TensorFormat, pb.ModelInput.Format),
        (mc.BatchInputKind, pb.BatchInput.Kind),
        (mc.BatchOutputKind, pb.BatchOutput.Kind),
        (mc.TimeoutAction, pb.ModelQueuePolicy.TimeoutAction),
        (mc.ControlKind, pb.ModelSequenceBatching.Control.Kind),
        (mc.InstanceKind, pb.ModelInstanceGroup.Kind),
        (mc.ExecutionPriority, pb.ModelOptimizationPolicy.ModelPriority),
    ],
)
def test_enums_have_the_numbers_and_the_words_of_the_schema(
    kind: Any,  # noqa: ANN401
    schema: Any,  # noqa: ANN401
) -> None:
    assert [member.value for member in kind] == sorted(schema.values())
    for member in kind:
        assert schema.Name(member.value).endswith(member.name)


def test_microseconds_become_nanoseconds() -> None:
    text = SMALL + (
        "dynamic_batching { max_queue_delay_microseconds: 100"
        " default_queue_policy { default_timeout_microseconds: 200000 } }"
    )
    batching = from_proto(parsed(text)).dynamic_batching
    assert batching is not None
    assert batching.max_queue_delay_ns == 100_000
    assert batching.default_queue_policy.default_timeout_ns == 200_000_000


def test_an_almost_empty_configuration_gets_the_defaults() -> None:
    config = from_proto(parsed(SMALL))
    assert config.version_policy == mc.LatestVersions(count=1)
    assert config.max_batch_size == 0
    assert config.dynamic_batching is None
    assert config.optimization.input_pinned_memory
    assert config.inputs[0].datatype is DataType.FP32
    assert config.inputs[0].reshape is None
    assert not config.decoupled


def test_an_empty_reshape_is_a_scalar_and_no_reshape_is_none() -> None:
    text = 'name: "m" input { name: "x" data_type: TYPE_INT8 dims: 1 reshape {} }'
    tensor = from_proto(parsed(text)).inputs[0]
    assert (tensor.reshape, tensor.model_dims) == ((), ())


def test_preferred_batch_sizes_ascend_without_repetition() -> None:
    text = SMALL + "dynamic_batching { preferred_batch_size: [ 8, 4, 8 ] }"
    batching = from_proto(parsed(text)).dynamic_batching
    assert batching is not None
    assert batching.preferred_batch_sizes == (4, 8)


def test_a_sequence_is_idle_for_a_second_unless_told_otherwise() -> None:
    sequences = from_proto(parsed(SMALL + "sequence_batching {}")).sequence_batching
    assert sequences is not None
    assert sequences.max_sequence_idle_ns == 1_000_000_000
    assert sequences.strategy == mc.DirectStrategy()


def test_a_warmup_without_a_count_runs_once() -> None:
    assert from_proto(parsed('name: "m" model_warmup { name: "w" }')).warmups == (
        mc.Warmup(name="w", batch_size=0, inputs={}, count=1),
    )
