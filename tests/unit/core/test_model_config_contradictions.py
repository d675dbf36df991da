import pytest
from google.protobuf import text_format

from protos import model_config_pb2 as pb
from services.core import model_config as mc
from services.core.model_config import FieldError
from services.core.model_config_proto import from_proto


def parsed(text: str) -> pb.ModelConfig:
    return text_format.Parse(text, pb.ModelConfig())


def is_accepted(text: str) -> bool:
    try:
        from_proto(parsed(text))
    except FieldError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('input { name: "x" dims: 1 }', "input[0].data_type"),
        ("input { data_type: TYPE_INT8 dims: 1 }", "input[0].name"),
        ('input { name: "x" data_type: TYPE_INT8 }', "input[0].dims"),
        ('input { name: "x" data_type: TYPE_INT8 dims: [1,0] }', "input[0].dims[1]"),
        (
            'output { name: "x" data_type: TYPE_INT8 dims: 4 reshape { shape: 5 } }',
            "output[0].reshape",
        ),
        ("max_batch_size: -1", "max_batch_size"),
        (
            "dynamic_batching { preferred_batch_size: 0 }",
            "dynamic_batching.preferred_batch_size[0]",
        ),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
            "dynamic_batching.default_priority_level",
        ),
        (
            (
                "dynamic_batching { priority_levels: 2 default_priority_level: 2"
                " priority_queue_policy { key: 3 value {} } }"
            ),
            "dynamic_batching.priority_queue_policy.3",
        ),
        (
            (
                "dynamic_batching { priority_levels: 2 default_priority_level: 1"
                " preserve_ordering: true }"
            ),
            "dynamic_batching.priority_levels",
        ),
        (
            (
                "dynamic_batching { preserve_ordering: true default_queue_policy {"
                " timeout_action: DELAY default_timeout_microseconds: 1 } }"
            ),
            "dynamic_batching.default_queue_policy.timeout_action",
        ),
        (
            "instance_group {} instance_group { kind: KIND_CPU gpus: 0 }",
            "instance_group[1].gpus",
        ),
        ("instance_group { count: -1 }", "instance_group[0].count"),
        (
            "instance_group { kind: KIND_GPU gpus: [ 1, 0, 1 ] }",
            "instance_group[0].gpus[2]",
        ),
        ('instance_group { profile: ["0", "-1"] }', "instance_group[0].profile[1]"),
        (
            'input { name: "x" data_type: TYPE_INT8 dims: 1 format: FORMAT_NHWC }',
            "input[0].format",
        ),
        (
            (
                "dynamic_batching { priority_levels: 2 default_priority_level: 1"
                " priority_queue_policy { key: 0 value {} } }"
            ),
            "dynamic_batching.priority_queue_policy.0",
        ),
        (
            'ensemble_scheduling { step { model_name: "a" input_map { key: "k" } } }',
            "ensemble_scheduling.step[0].output_map",
        ),
        (
            (
                'sequence_batching { control_input { name: "c" } control_input {'
                ' name: "c" } }'
            ),
            "sequence_batching.control_input[1]",
        ),
        (
            (
                'sequence_batching { control_input { name: "c" control {'
                ' int32_false_true: [0,1] } } control_input { name: "d" control {'
                " fp32_false_true: [0,1] } } }"
            ),
            "sequence_batching.control_input[1].control[0].kind",
        ),
        (
            (
                'model_warmup { name: "w" inputs { key: "x" value {'
                " data_type: TYPE_INT8 dims: 0 zero_data: true } } }"
            ),
            "model_warmup[0].inputs.x.dims[0]",
        ),
        (
            (
                'model_metrics { metric_control { metric_identifier { family: "f" }'
                " histogram_options { buckets: [ 1, 1 ] } } }"
            ),
            "model_metrics.metric_control[0].histogram_options.buckets[1]",
        ),
        ("ensemble_scheduling {}", "ensemble_scheduling.step"),
        (
            "sequence_batching { direct { minimum_slot_utilization: 1.5 } }",
            "sequence_batching.direct.minimum_slot_utilization",
        ),
        (
            (
                'sequence_batching { control_input { name: "c" control {'
                " int32_false_true: 0 } } }"
            ),
            "sequence_batching.control_input[0].control[0].int32_false_true",
        ),
        (
            (
                'sequence_batching { control_input { name: "c" control {'
                " int32_false_true: [0,1] bool_false_true: [false,true] } } }"
            ),
            "sequence_batching.control_input[0].control[0].bool_false_true",
        ),
        (
            (
                'sequence_batching { control_input { name: "c" control {'
                " kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } } }"
            ),
            "sequence_batching.control_input[0].control[0].data_type",
        ),
        ('model_warmup { name: "w" inputs { key: "x" } }', "model_warmup[0].inputs.x"),
        ("batch_input { data_type: TYPE_INT8 }", "batch_input[0].source_input"),
        (
            'model_metrics { metric_control { metric_identifier { family: "f" } } }',
            "model_metrics.metric_control[0].histogram_options",
        ),
    ],
)
def test_a_contradiction_names_its_field(text: str, path: str) -> None:
    with pytest.raises(FieldError) as caught:
        from_proto(parsed('name: "m" ' + text))
    assert str(caught.value).split(": ")[0] == path


@pytest.mark.parametrize(
    ("dims", "shape", "fits"),
    [
        ("[ 2, 4, -1, 6 ]", "[ 8, -1, 1, 6 ]", True),
        ("[ 2, 4, -1, 6 ]", "[ 4, -1, 12 ]", False),
        ("[ -1, -1 ]", "[ -1 ]", False),
        ("[ -1 ]", "[ 1, -1, 1 ]", True),
        ("[ 4 ]", "[ -1 ]", False),
        ("[ 1 ]", "[]", True),
        ("[ 2 ]", "[]", False),
    ],
)
def test_a_reshape_keeps_the_elements_between_variable_dimensions(
    dims: str,
    shape: str,
    fits: bool,
) -> None:
    text = (
        f'name: "m" input {{ name: "x" data_type: TYPE_INT8 dims: {dims}'
        f" reshape {{ shape: {shape} }} }}"
    )
    assert is_accepted(text) is fits


def test_delay_without_a_timeout_keeps_the_order() -> None:
    text = (
        'name: "m" '
        "dynamic_batching { preserve_ordering: true"
        " default_queue_policy { timeout_action: DELAY } }"
    )
    assert from_proto(parsed(text)).dynamic_batching is not None


def test_two_schedulers_contradict_each_other() -> None:
    with pytest.raises(FieldError, match="at most one scheduler"):
        mc.ModelConfig(
            name="m",
            dynamic_batching=mc.DynamicBatching(),
            sequence_batching=mc.SequenceBatching(),
        )


STATE = """sequence_batching { state {
  input_name: "i" output_name: "o" data_type: TYPE_INT32 dims: [ 2, -1 ] %s
} %s }"""
INITIAL = (
    ' initial_state { name: "n" data_type: TYPE_INT32 dims: [ 2, 3 ] zero_data: true }'
)


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        (
            INITIAL + INITIAL,
            "initial_state field for state input 'i' must contain exactly one or zero "
            "element. Found '2' elements.",
        ),
        (
            INITIAL.replace("INT32", "FP32"),
            "The data type used for 'initial_state' field of state 'i' does not match "
            "the state data type.",
        ),
        (
            INITIAL.replace('"n"', '""'),
            "Field 'name' must be set when using initial_state for state input 'i'.",
        ),
        (
            INITIAL.replace("[ 2, 3 ]", "2"),
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' "
            "dimensions for state input 'i'. 1 != 2",
        ),
        (
            INITIAL.replace("3 ]", "-1 ]"),
            "'initial_state' field for state input name 'i' contains variable "
            "dimensions.",
        ),
        (
            INITIAL.replace("[ 2", "[ 4"),
            "'initial_state' dim for input name 'i' doesn't match 'state' dim "
            "description. 4 != 2",
        ),
        (
            INITIAL.replace("zero_data: true", ""),
            "initial_state setting expects state 'i' to have state_data set",
        ),
        (
            "use_growable_memory: true",
            "In order to 'use_growable_memory', you must also enable "
            "'use_same_buffer_for_input_output' for state input name 'i'.",
        ),
    ],
)
def test_a_states_contradictions_are_told_in_tritons_words(
    initial: str, message: str
) -> None:
    with pytest.raises(FieldError) as caught:
        from_proto(parsed('name: "m" ' + STATE % (initial, "")))
    assert str(caught.value).split(": ", 1)[1] == message


@pytest.mark.parametrize(
    ("more", "path"),
    [
        (
            'state { input_name: "i" output_name: "p" data_type: TYPE_INT8 dims: 1 }',
            "sequence_batching.state[1].input_name",
        ),
        (
            'state { input_name: "j" output_name: "o" data_type: TYPE_INT8 dims: 1 }',
            "sequence_batching.state[1].output_name",
        ),
        (
            'control_input { name: "i" control { bool_false_true: [ 0, 1 ] } }',
            "sequence_batching.state[0].input_name",
        ),
    ],
)
def test_nothing_is_two_states_nor_a_state_and_a_control(more: str, path: str) -> None:
    with pytest.raises(FieldError) as caught:
        from_proto(parsed('name: "m" ' + STATE % ("", more)))
    assert str(caught.value).split(": ")[0] == path


def test_a_state_may_grow_in_place_on_every_device() -> None:
    growable = "use_same_buffer_for_input_output: true use_growable_memory: true"
    config = from_proto(parsed('name: "m" ' + STATE % (growable + INITIAL, "")))
    (state,) = config.states
    assert state.use_growable_memory
    assert state.initial_dims == (2, 3)
