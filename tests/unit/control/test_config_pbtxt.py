import pytest

from services.control.config_pbtxt import (
    ConfigText,
    absent,
    decode,
    parse,
    parse_json,
)
from services.core.errors import ConfigError
from services.core.model_config_fields import FieldError


def test_a_configuration_is_read_as_written() -> None:
    written = parse('name: "m"\nmax_batch_size: 8\ndynamic_batching {}')
    assert written.message.name == "m"
    assert written.message.max_batch_size == 8
    assert written.message.HasField("dynamic_batching")
    assert not written.message.HasField("version_policy")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'name: "bad_cfg"\nbackend: "b"\nmax_batch_size: eight\n',
            "config.pbtxt:3:17: max_batch_size: expected an integer, got eight",
        ),
        (
            'input { name: "x" }\ninput [ { name: "z"\n data_typ: 3 } ]',
            (
                "config.pbtxt:3:2: input[1]: unknown field 'data_typ' of ModelInput; "
                "did you mean data_type?"
            ),
        ),
        (
            "zzz: 1",
            "config.pbtxt:1:1: unknown field 'zzz' of ModelConfig",
        ),
        (
            "input { data_type: TYPE_FP31 }",
            (
                "config.pbtxt:1:20: input[0].data_type: unknown value TYPE_FP31; "
                "did you mean TYPE_FP32?"
            ),
        ),
        (
            "\ndynamic_batching {}\nsequence_batching {}",
            (
                "config.pbtxt:3:1: 'sequence_batching' and 'dynamic_batching' exclude "
                "each other"
            ),
        ),
        (
            'name: "a"\nname: "b"',
            "config.pbtxt:2:7: name: 'name' must not be given twice",
        ),
        (
            "max_batch_size:",
            "config.pbtxt:1:16: max_batch_size: expected an integer, got nothing",
        ),
        (
            "version_policy: { latest { num_versions: -1 } }",
            (
                "config.pbtxt:1:42: version_policy.latest.num_versions: Value out of "
                "range: -1"
            ),
        ),
        (
            "input { dims: [ 1 2 ] }",
            'config.pbtxt:1:19: input[0].dims[1]: Expected ","',
        ),
    ],
)
def test_a_refusal_names_line_column_and_field(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert str(caught.value) == message


def test_a_contradiction_is_located_in_its_text() -> None:
    written = parse("max_batch_size: 4\n\ndynamic_batching {\n  priority_levels: 1\n}")
    error = FieldError("wrong", "dynamic_batching", "priority_levels")
    expected = "config.pbtxt:4:3: dynamic_batching.priority_levels: wrong"
    assert str(written.locate(error)) == expected


@pytest.mark.parametrize("written", [absent(), parse(""), parse_json("{}")])
def test_a_contradiction_without_a_place_names_the_source(written: ConfigText) -> None:
    located = written.locate(FieldError("wrong", "backend"))
    assert str(located) == f"{written.source}: backend: wrong"


def test_the_json_form_says_the_same() -> None:
    assert (
        parse_json('{"max_batch_size": 4}').message
        == parse("max_batch_size: 4").message
    )


def test_a_refused_json_form_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="unknown field 'inputs'"):
        parse_json(b'{"inputs": []}')


def test_a_file_may_begin_with_a_byte_order_mark() -> None:
    assert decode(b"\xef\xbb\xbfname") == "name"


def test_a_file_that_is_not_utf8_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError) as caught:
        decode(b"name:\n a\xff")
    assert str(caught.value) == "config.pbtxt:2:3: byte 0xff is not UTF-8"
