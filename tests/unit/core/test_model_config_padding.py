"""What a model may declare about padding, and what is refused."""

import json

import pytest

from protos import model_config_pb2 as pb
from services.core.model_config_fields import FieldError
from services.core.model_config_padding import (
    CutOutput,
    GeneratedInput,
    LengthOf,
    PaddedInput,
    Padding,
)
from services.core.model_config_proto import from_proto


def config(padding: object, *, max_batch_size: int = 8) -> pb.ModelConfig:
    message = pb.ModelConfig(name="text", max_batch_size=max_batch_size)
    for name, data_type, dims in (
        ("ids", pb.TYPE_INT64, [-1]),
        ("mask", pb.TYPE_INT64, [-1]),
        ("lengths", pb.TYPE_INT32, [1]),
        ("fixed", pb.TYPE_FP32, [4]),
    ):
        message.input.add(name=name, data_type=data_type, dims=dims)
    message.output.add(name="y", data_type=pb.TYPE_FP32, dims=[-1, 3])
    text = padding if isinstance(padding, str) else json.dumps(padding)
    message.parameters["nereid_padding"].string_value = text
    return message


WHOLE = {
    "inputs": {"ids": {"dims": [0], "value": -1}},
    "buckets": [16, 32],
    "mask": {"name": "mask", "of": "ids"},
    "lengths": {"name": "lengths"},
    "outputs": {"y": {"dim": 0, "of": "ids:0"}},
}


def test_a_whole_declaration_is_read() -> None:
    of = LengthOf(name="ids", dim=0)
    assert from_proto(config(WHOLE)).padding == Padding(
        inputs=(PaddedInput(name="ids", dims=(0,), value=-1),),
        buckets=(16, 32),
        mask=GeneratedInput(name="mask", of=of),
        lengths=GeneratedInput(name="lengths", of=of),
        outputs=(CutOutput(name="y", dim=0, of=of),),
    )


def test_clients_do_not_send_what_is_generated() -> None:
    names = [tensor.name for tensor in from_proto(config(WHOLE)).client_inputs]
    assert names == ["ids", "fixed"]


def test_without_a_declaration_nothing_is_padded() -> None:
    message = config(WHOLE)
    del message.parameters["nereid_padding"]
    assert from_proto(message).padding is None
    assert len(from_proto(message).client_inputs) == 4


def test_a_length_is_padded_to_the_smallest_bucket_that_holds_it() -> None:
    padding = Padding(inputs=(PaddedInput(name="ids", dims=(0,)),), buckets=(16, 32))
    lengths = (0, 16, 17, 32, 33)
    assert [padding.bucket_of(n) for n in lengths] == [16, 16, 32, 32, 33]
    assert padding.batch_key(3) == padding.batch_key(16) != padding.batch_key(17)


def test_without_buckets_all_lengths_share_a_batch() -> None:
    padding = Padding(inputs=(PaddedInput(name="ids", dims=(0,)),))
    assert padding.batch_key(3) == padding.batch_key(300)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ({"inputs": {}}, "at least one input"),
        ({**WHOLE, "bukets": []}, "unknown key 'bukets'"),
        ({**WHOLE, "inputs": {"nope": {}}}, "'nope' is no input"),
        ({**WHOLE, "inputs": {"fixed": {}}}, "dimension 0 of 'fixed' is not variable"),
        ({**WHOLE, "inputs": {"ids": {"dims": [1]}}}, "dimension 1 of 'ids'"),
        ({**WHOLE, "inputs": {"ids": {"value": "x"}}}, "must be a number"),
        ({**WHOLE, "buckets": [32, 16]}, "must ascend"),
        ({**WHOLE, "buckets": [0]}, "must ascend and be positive"),
        ({**WHOLE, "mask": {"name": "ids"}}, "padded and generated"),
        ({**WHOLE, "mask": {"name": "nope"}}, "must name an input"),
        ({**WHOLE, "mask": {"name": "mask", "of": "fixed"}}, "'of' must name"),
        ({**WHOLE, "outputs": {"nope": {}}}, "'nope' is no output"),
        ({**WHOLE, "outputs": {"y": {"dim": 1}}}, "dimension 1 of 'y'"),
    ],
)
def test_a_contradiction_names_the_parameter_and_the_reason(
    change: object, reason: str
) -> None:
    with pytest.raises(FieldError) as caught:
        from_proto(config(change))
    assert reason in str(caught.value)
    assert caught.value.path == ("parameters", "nereid_padding")


def test_a_model_that_does_not_batch_has_nothing_to_pad() -> None:
    with pytest.raises(FieldError, match="max_batch_size > 0"):
        from_proto(config(WHOLE, max_batch_size=0))
