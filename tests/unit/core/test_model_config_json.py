import json

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.model_config_pb2 import ModelConfig
from services.core.errors import ConfigError
from services.core.model_config_json import from_json, to_dict, to_json

BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def config_of(text: str) -> ModelConfig:
    return text_format.Parse(text, ModelConfig())


def refusal(text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        from_json(text)
    return str(caught.value)


def values(field: FieldDescriptor) -> st.SearchStrategy[object]:
    if field.message_type is not None:
        return objects(field.message_type)
    if field.enum_type is not None:
        return st.sampled_from(sorted(field.enum_type.values_by_name))
    if field.cpp_type in BOUNDS:
        least, greatest = BOUNDS[field.cpp_type]
        return st.integers(least, greatest)
    if field.cpp_type in {
        FieldDescriptor.CPPTYPE_FLOAT,
        FieldDescriptor.CPPTYPE_DOUBLE,
    }:
        return st.floats(width=32, allow_nan=False, allow_infinity=False)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    return st.text(max_size=4)


@st.composite
def objects(draw: st.DrawFn, descriptor: Descriptor) -> dict[str, object]:
    """Draw JSON of any message of this type, a few fields set."""
    fields = draw(
        st.lists(st.sampled_from(list(descriptor.fields)), max_size=4)
        if descriptor.fields
        else st.just([])
    )
    alone = {
        field.containing_oneof.name if field.containing_oneof else field.name: field
        for field in fields
    }
    drawn: dict[str, object] = {}
    for field in alone.values():
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            keys = values(message.fields_by_name["key"]).map(str)
            items = values(message.fields_by_name["value"])
            drawn[field.name] = draw(st.dictionaries(keys, items, max_size=2))
        elif field.is_repeated:
            drawn[field.name] = draw(st.lists(values(field), max_size=2))
        else:
            drawn[field.name] = draw(values(field))
    return drawn


@settings(max_examples=150, deadline=None)
@given(objects(ModelConfig.DESCRIPTOR))
def test_what_was_printed_reads_back_as_the_same_message(
    drawn: dict[str, object],
) -> None:
    config = from_json(json.dumps(drawn))
    assert from_json(to_json(config)) == config


def test_an_empty_configuration_prints_every_field_that_cannot_be_unset() -> None:
    assert to_json(ModelConfig()) == (
        b'{"name":"","platform":"","backend":"","runtime":"","max_batch_size":0,'
        b'"input":[],"output":[],"batch_input":[],"batch_output":[],'
        b'"instance_group":[],"default_model_filename":"","cc_model_filenames":{},'
        b'"metric_tags":{},"parameters":{},"model_warmup":[]}'
    )


def test_a_batching_model_prints_as_a_client_expects() -> None:
    config = config_of(
        """
        name: "m" backend: "python" max_batch_size: 8
        version_policy { latest { num_versions: 1 } }
        input { name: "IN" data_type: TYPE_STRING dims: [ -1, 16 ] }
        output { name: "OUT" data_type: TYPE_FP32 dims: 1 reshape {} }
        dynamic_batching {
          preferred_batch_size: [ 4, 8 ]
          max_queue_delay_microseconds: 100
          priority_queue_policy { key: 2 value { timeout_action: DELAY } }
        }
        parameters { key: "note" value { string_value: "x" } }
        """
    )
    printed = to_dict(config)
    assert printed["version_policy"] == {"latest": {"num_versions": 1}}
    assert printed["input"] == [
        {
            "name": "IN",
            "data_type": "TYPE_STRING",
            "format": "FORMAT_NONE",
            "dims": [-1, 16],
            "is_shape_tensor": False,
            "allow_ragged_batch": False,
            "optional": False,
            "is_non_linear_format_io": False,
        }
    ]
    assert printed["output"] == [
        {
            "name": "OUT",
            "data_type": "TYPE_FP32",
            "dims": [1],
            "reshape": {"shape": []},
            "label_filename": "",
            "is_shape_tensor": False,
            "is_non_linear_format_io": False,
        }
    ]
    assert printed["dynamic_batching"] == {
        "preferred_batch_size": [4, 8],
        "max_queue_delay_microseconds": 100,
        "preserve_ordering": False,
        "priority_levels": 0,
        "default_priority_level": 0,
        "priority_queue_policy": {
            "2": {
                "timeout_action": "DELAY",
                "default_timeout_microseconds": 0,
                "allow_timeout_override": False,
                "max_queue_size": 0,
            }
        },
    }
    assert printed["parameters"] == {"note": {"string_value": "x"}}
    assert "sequence_batching" not in printed
    assert "optimization" not in printed


def test_an_ensemble_prints_its_inflight_limit_only_if_it_has_one() -> None:
    config = config_of(
        'ensemble_scheduling { step { model_name: "a" model_version: -1 } }'
    )
    step = {
        "model_name": "a",
        "model_version": -1,
        "input_map": {},
        "output_map": {},
        "model_namespace": "",
    }
    assert to_dict(config)["ensemble_scheduling"] == {"step": [step]}
    config.ensemble_scheduling.max_inflight_requests = 3
    assert to_dict(config)["ensemble_scheduling"] == {
        "step": [step],
        "max_inflight_requests": 3,
    }


def test_a_chosen_scalar_of_a_oneof_prints_even_if_false() -> None:
    config = config_of(
        'model_warmup { inputs { key: "a" value { zero_data: false } } }'
    )
    warmup = json.loads(to_json(config))["model_warmup"][0]
    assert warmup["inputs"]["a"] == {
        "data_type": "TYPE_INVALID",
        "dims": [],
        "zero_data": False,
    }


def test_numbers_print_exactly() -> None:
    config = config_of(
        """
        version_policy { specific { versions: 9223372036854775807 } }
        sequence_batching {
          max_sequence_idle_microseconds: 18446744073709551615
          direct { minimum_slot_utilization: 0.1 }
        }
        model_metrics { metric_control { histogram_options { buckets: 0.1 } } }
        """
    )
    printed = to_json(config)
    assert b'"versions":[9223372036854775807]' in printed
    assert b'"max_sequence_idle_microseconds":18446744073709551615' in printed
    assert b'"minimum_slot_utilization":0.1}' in printed
    assert b'"buckets":[0.1]' in printed


@pytest.mark.parametrize("bound", ["Infinity", "-Infinity", "NaN"])
def test_floats_that_json_lacks_are_strings(bound: str) -> None:
    text = f'{{"metric_control":[{{"histogram_options":{{"buckets":["{bound}"]}}}}]}}'
    config = from_json(f'{{"model_metrics":{text}}}')
    assert f'"buckets":["{bound}"]'.encode() in to_json(config)


def test_an_enum_number_without_a_name_prints_as_a_number() -> None:
    config = ModelConfig()
    config.instance_group.add().kind = 77  # type: ignore[assignment]
    printed = json.loads(to_json(config))
    assert printed["instance_group"][0]["kind"] == 77


@pytest.mark.parametrize(
    "text",
    [
        '{"max_batch_size": 4, "version_policy": {"specific": {"versions": [3]}}}',
        '{"maxBatchSize": 4, "versionPolicy": {"specific": {"versions": ["3"]}}}',
        b'{"max_batch_size": 4.0, "versionPolicy": {"specific": {"versions": [3]}}}',
        b'{"maxBatchSize":4,"version_policy":{"specific":{"versions":[3]}},"name":null}',
    ],
)
def test_every_json_form_of_protobuf_is_read(text: str | bytes) -> None:
    assert from_json(text) == config_of(
        "max_batch_size: 4 version_policy { specific { versions: 3 } }"
    )


def test_an_enum_may_be_a_name_or_a_number() -> None:
    config = from_json('{"input": [{"data_type": 8}, {"data_type": "TYPE_INT32"}]}')
    assert config.input[0] == config.input[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{x", "is not JSON"),
        (b"\xff", "is not JSON"),
        ('{"name": "a", "name": "a"}', "is not JSON: duplicate key 'name'"),
        ('{"a":' * 9999, "is not JSON: nested too deeply"),
        ("[]", "expected an object"),
        ("null", "expected an object"),
        ('{"optimization": []}', "expected an object at 'optimization'"),
        ('{"input": [""]}', "expected an object at 'input[0]'"),
        ('{"parameters": {"k": 5}}', "expected an object at 'parameters['k']'"),
        ('{"nofield": 1}', "unknown field 'nofield'"),
        ('{"\\ud800": 1}', "unknown field '\\ud800'"),
        ('{"input": [{"dim": [1]}]}', "unknown field 'dim' at 'input[0]'"),
        ('{"input": {}}', "input"),
        ('{"parameters": []}', "parameters"),
        ('{"name": 5}', "name"),
        ('{"name": "\\ud800"}', "surrogate"),
        ('{"max_batch_size": 2147483648}', "out of range"),
        ('{"max_batch_size": 4.5}', "max_batch_size"),
        ('{"max_batch_size": true}', "max_batch_size"),
        ('{"input": [{"data_type": "INT32"}]}', "\"INT32\" at 'input[0].data_type'"),
        ('{"input": [{"data_type": 15}]}', "15 at 'input[0].data_type'"),
        ('{"input": [{"data_type": true}]}', "true at 'input[0].data_type'"),
        ('{"input": [{"data_type": []}]}', "[] at 'input[0].data_type'"),
        ('{"dynamic_batching":{},"ensemble_scheduling":{}}', "scheduling_choice"),
        (
            '{"dynamic_batching": {"priority_queue_policy": {"x": {}}}}',
            "priority_queue_policy",
        ),
    ],
)
def test_what_is_no_configuration_is_refused(text: str | bytes, message: str) -> None:
    assert message in refusal(text)


def known_names(descriptor: Descriptor) -> st.SearchStrategy[str]:
    return st.sampled_from([field.name for field in descriptor.fields])


def any_json() -> st.SearchStrategy[object]:
    # Unlike st.text()'s own, these include surrogates, which JSON can escape.
    text = st.text(st.characters(), max_size=3)
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | text
    keys = known_names(ModelConfig.DESCRIPTOR) | text
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=3)
        ),
        max_leaves=8,
    )


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(known_names(ModelConfig.DESCRIPTOR), any_json(), max_size=3))
def test_any_json_is_read_or_refused_in_words_that_can_be_sent(value: object) -> None:
    refused = ""
    try:
        config = from_json(json.dumps(value))
    except ConfigError as error:
        refused = str(error)
    assert refused.encode() or from_json(to_json(config)) == config
