import pytest

from services.control.config_pbtxt import parse
from services.control.config_validation import (
    require_consistent,
    require_directory_name,
)
from services.core.errors import ConfigError
from services.core.model_config import FieldError, ModelConfig
from services.core.model_config_proto import from_proto

HEAD = """
name: "m" platform: "onnxruntime_onnx" backend: "onnxruntime"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
"""


def checked(text: str) -> ModelConfig:
    config = from_proto(parse(text).message)
    require_consistent(config)
    return config


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dynamic_batching { preferred_batch_size: 8 }",
        "sequence_batching { oldest { preferred_batch_size: 8 } }",
        "response_cache { enable: true }",
        "response_cache {} model_transaction_policy { decoupled: true }",
        'batch_input { data_type: TYPE_FP32 target_name: "t" source_input: "x" }',
        'batch_output { target_name: "y" source_input: "x" }',
        'output { name: "x" data_type: TYPE_FP32 dims: 1 reshape {} }',
        "instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }",
    ],
)
def test_what_fits_together_is_accepted(text: str) -> None:
    assert checked(HEAD + text).name == "m"


def test_a_queue_policy_is_possible_without_batches() -> None:
    text = HEAD.replace("max_batch_size: 8", "") + "dynamic_batching {}"
    assert checked(text).dynamic_batching is not None


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (
            "dynamic_batching { preferred_batch_size: [ 4, 9 ] }",
            "dynamic_batching.preferred_batch_size",
        ),
        (
            "sequence_batching { oldest { preferred_batch_size: 9 } }",
            "sequence_batching.oldest.preferred_batch_size",
        ),
        ('input { name: "x" data_type: TYPE_INT8 dims: 1 }', "input[1].name"),
        ('output { name: "y" data_type: TYPE_INT8 dims: 1 }', "output[1].name"),
        (
            'input { name: "z" data_type: TYPE_INT8 dims: 1 is_shape_tensor: true }',
            "input[1].is_shape_tensor",
        ),
        (
            (
                'output { name: "z" data_type: TYPE_INT8 dims: [ 1, 1, 1 ]'
                " is_non_linear_format_io: true }"
            ),
            "output[1].is_non_linear_format_io",
        ),
        (
            'batch_input { data_type: TYPE_FP32 target_name: "t" source_input: "y" }',
            "batch_input[0].source_input",
        ),
        ('batch_output { source_input: "y" }', "batch_output[0].source_input"),
        (
            'batch_output { target_name: "x" source_input: "x" }',
            "batch_output[0].target_name[0]",
        ),
        (
            'batch_input { data_type: TYPE_FP32 target_name: "x" source_input: "x" }',
            "batch_input[0].target_name[0]",
        ),
        (
            (
                "batch_input { data_type: TYPE_FP32"
                ' target_name: "t" target_name: "t" source_input: "x" }'
            ),
            "batch_input[0].target_name[1]",
        ),
        (
            (
                'output { name: "z" data_type: TYPE_FP32 dims: [ 1, -1 ] }'
                ' batch_output { target_name: "z" source_input: "x" }'
            ),
            "batch_output[0].target_name[0]",
        ),
        (
            (
                'input { name: "p" data_type: TYPE_FP32 dims: -1'
                " allow_ragged_batch: true }"
                ' parameters { key: "nereid_padding" value { string_value:'
                """ '{"inputs": {"p": {}}}' } }"""
            ),
            "parameters.nereid_padding",
        ),
        (
            "response_cache { enable: true } sequence_batching {}",
            "response_cache.enable",
        ),
        (
            (
                "response_cache { enable: true }"
                " model_transaction_policy { decoupled: true }"
            ),
            "response_cache.enable",
        ),
        (
            "sequence_batching { state { "
            'input_name: "x" output_name: "o" data_type: TYPE_INT32 dims: 1 } }',
            "sequence_batching.state[0].input_name",
        ),
        (
            "sequence_batching { state { "
            'input_name: "s" output_name: "y" data_type: TYPE_BOOL dims: 1 } }',
            "sequence_batching.state[0].data_type",
        ),
        (
            "model_transaction_policy { decoupled: true } sequence_batching { state { "
            'input_name: "s" output_name: "o" data_type: TYPE_INT32 dims: 1 } }',
            "sequence_batching.state[0]",
        ),
        (
            'parameters { key: "nereid_state_checkpoint" value { string_value: "1" } }',
            "parameters.nereid_state_checkpoint",
        ),
        (
            'parameters { key: "nereid_state_checkpoint" '
            'value { string_value: "true" } }',
            "parameters.nereid_state_checkpoint",
        ),
        ('instance_group { profile: "0" }', "instance_group[0].profile"),
        (
            'ensemble_scheduling { step { model_name: "a" input_map { key: "a" }'
            ' output_map { key: "a" } } }',
            "platform",
        ),
    ],
)
def test_a_contradiction_between_records_names_a_field(text: str, path: str) -> None:
    with pytest.raises(FieldError) as caught:
        checked(HEAD + text)
    assert str(caught.value).split(": ")[0] == path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "backend: must specify 'platform' or 'backend' for 'm'"),
        ('platform: "p"', "platform: unexpected platform type 'p' for m"),
        (
            'backend: "onnxruntime"',
            ("backend: unexpected 'platform' and 'backend' pair, got:, onnxruntime"),
        ),
        (
            'backend: "onnxruntime" platform: "tensorrt_plan"',
            (
                "platform: unexpected 'platform' and 'backend' pair, "
                "got:tensorrt_plan, onnxruntime"
            ),
        ),
        (
            'platform: "ensemble" backend: "python"',
            (
                "backend: ensemble model 'm' must have platform type 'ensemble' and "
                "empty backend type"
            ),
        ),
        (
            'platform: "ensemble"',
            (
                "platform: ensemble scheduling must be set for ensemble m whose "
                "platform is ensemble"
            ),
        ),
        (
            (
                'backend: "python" input { name: "x" data_type: TYPE_INT8 dims: 1'
                " reshape {} }"
            ),
            (
                "input[0].reshape: model input 'x' cannot have empty reshape for "
                "non-batching model as scalar tensors are not supported"
            ),
        ),
    ],
)
def test_backend_and_platform_have_to_fit(text: str, message: str) -> None:
    with pytest.raises(FieldError) as caught:
        checked('name: "m" ' + text)
    assert str(caught.value) == message


def test_a_backend_nobody_knows_accepts_any_platform() -> None:
    assert checked('name: "m" backend: "mine" platform: "own"').platform == "own"


def test_the_name_is_the_folders() -> None:
    require_directory_name("m", "m")
    require_directory_name("", "m")
    with pytest.raises(ConfigError, match="unexpected directory name 'bad_name' for"):
        require_directory_name("other_name", "bad_name")
