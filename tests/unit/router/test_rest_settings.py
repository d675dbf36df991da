"""Trace and log settings as REST clients write them."""

import json

import pytest

from protos import inference_pb2 as pb
from services.core.errors import (
    InternalError,
    InvalidRequestError,
    OverloadedError,
    ServingError,
    UnsupportedError,
)
from services.router.rest_settings import read_log_request, read_trace_request


def values(body: object) -> dict[str, list[str]]:
    request = read_trace_request("m", json.dumps(body).encode())
    assert request.model_name == "m"
    # As control gets it: a setting without a value is there all the same.
    received = pb.TraceSettingRequest.FromString(request.SerializeToString())
    return {name: list(each.value) for name, each in received.settings.items()}


def test_null_clears_a_trace_setting_and_an_empty_list_says_nothing() -> None:
    body = {"trace_rate": "7", "trace_count": None, "trace_level": None, "foo": 1}
    assert values(body) == {"trace_rate": ["7"], "trace_count": [], "trace_level": []}
    assert values({"trace_level": []}) == {}
    assert values({"trace_level": ["TENSORS"]}) == {"trace_level": ["TENSORS"]}


@pytest.mark.parametrize("body", [[], 3, None])
def test_a_document_that_is_no_object_names_nothing(body: object) -> None:
    assert values(body) == {}
    assert not read_log_request(json.dumps(body).encode()).settings


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ("{x", InternalError, "failed to parse the request JSON buffer: Missing a"),
        ("", InternalError, "failed to parse the request JSON buffer: The document"),
        ('{"trace_rate":5}', InternalError, "attempt to access JSON non-string as"),
        ('{"trace_level":"OFF"}', InternalError, "attempt to access JSON non-array as"),
        ('{"trace_level":[3]}', InternalError, "attempt to access JSON non-string as"),
        ('{"trace_file":null}', UnsupportedError, "trace file location can not be"),
    ],
)
def test_a_trace_setting_that_makes_no_sense(
    body: str, kind: type[ServingError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        read_trace_request("", body.encode())


def test_only_the_log_settings_that_are_named_are_sent() -> None:
    request = read_log_request(
        b'{"log_info":false,"log_verbose_level":3,"log_format":"ISO8601",'
        b'"log_error":null,"log_file":null,"foo":1}'
    )
    settings = {
        name: getattr(value, value.WhichOneof("parameter_choice") or "")
        for name, value in request.settings.items()
    }
    assert settings == {
        "log_info": False,
        "log_verbose_level": 3,
        "log_format": "ISO8601",
    }


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ('{"log_info":1}', InternalError, "non-boolean as boolean"),
        ('{"log_verbose_level":-1}', InternalError, "non-unsigned-integer as"),
        ('{"log_verbose_level":true}', InternalError, "non-unsigned-integer as"),
        ('{"log_verbose_level":4294967296}', InternalError, "non-unsigned-integer as"),
        ('{"log_format":3}', InternalError, "non-string as string"),
        ('{"log_format":"x"}', OverloadedError, "invalid argument for --log_format"),
        ('{"log_file":"x"}', UnsupportedError, "log file location can not be"),
    ],
)
def test_a_log_setting_that_makes_no_sense(
    body: str, kind: type[ServingError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        read_log_request(body.encode())


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        read_trace_request("", b'{"trace_rate":"\xff"}')
