import pytest

from services.core.errors import InternalError
from services.router.rest_repository import read_load_request, read_unload_request


@pytest.mark.parametrize("body", [b"", b"{}", b'{"parameters": {}}'])
def test_a_load_without_parameters_asks_for_what_is_on_disk(body: bytes) -> None:
    request = read_load_request(body, "m", "repo")
    assert (request.model_name, request.repository_name) == ("m", "repo")
    assert not request.parameters


def test_the_files_of_a_load_come_in_base64() -> None:
    body = b'{"parameters": {"config": "{}", "file:1/a.py": "AP8="}}'
    parameters = read_load_request(body, "m", "").parameters
    assert parameters["config"].string_param == "{}"
    assert parameters["file:1/a.py"].bytes_param == b"\x00\xff"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{x", "failed to parse the request JSON buffer"),
        (b'{"parameters": {"foo": "bar"}}', "unexpected error on creating Triton"),
        (b'{"parameters": {"config": {}}}', "non-string as string"),
        (b'{"parameters": {"file:1/m": 1}}', "non-string as string"),
        (b'{"parameters": {"file:1/m": "A"}}', "not base64"),
        (b'{"parameters": {"file:1/m": "\xc3\xa4AAA"}}', "not base64"),
        (b'{"parameters": []}', "non-object as object"),
    ],
)
def test_a_load_that_cannot_be_read_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(InternalError, match=reason):
        read_load_request(body, "m", "")


@pytest.mark.parametrize("value", [True, False])
def test_an_unload_may_take_what_the_model_is_made_of(*, value: bool) -> None:
    body = b'{"parameters": {"unload_dependents": %s}}' % str(value).lower().encode()
    parameters = read_unload_request(body, "m", "").parameters
    assert parameters["unload_dependents"].bool_param is value


@pytest.mark.parametrize("body", [b"", b"{x", b"[]", b'{"parameters": {"x": 1}}'])
def test_an_unload_passes_over_what_it_does_not_know(body: bytes) -> None:
    request = read_unload_request(body, "m", "repo")
    assert (request.model_name, request.repository_name) == ("m", "repo")
    assert not request.parameters


def test_an_unload_is_not_in_doubt_about_what_goes_with_it() -> None:
    with pytest.raises(InternalError, match="non-boolean as boolean"):
        read_unload_request(b'{"parameters": {"unload_dependents": 1}}', "m", "")
