import pytest

from services.core.errors import InternalError, InvalidRequestError
from services.router.rest_traffic import read_request


def test_weights_are_by_version() -> None:
    body = b'{"weights": {"1": 95, "2": 5}, "sticky_parameter": "user"}'
    request = read_request(body, "m")
    assert request.model_name == "m"
    assert dict(request.split.weights) == {1: 95, 2: 5}
    assert request.split.sticky_parameter == "user"


@pytest.mark.parametrize("body", [b"", b"{}", b'{"weights": {}}'])
def test_no_weights_end_a_split(body: bytes) -> None:
    request = read_request(body, "m")
    assert request.HasField("split")
    assert not request.split.weights


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{x",
        b'{"weights": []}',
        b'{"weights": {"1": -1}}',
        b'{"weights": {"1": "a"}}',
        b'{"weights": {"x": 1}}',
        b'{"weights": {"0": 1}}',
        b'{"weights": {"": 1}}',
        b'{"weights": {"1": 4294967296}}',
        b'{"sticky_parameter": 1}',
    ],
)
def test_what_is_no_split_is_refused(body: bytes) -> None:
    with pytest.raises((InternalError, InvalidRequestError)):
        read_request(body, "m")
