"""Headers that models see as parameters."""

import pytest

from services.core.errors import InvalidRequestError
from services.router.header_forwarding import HeaderForwarding
from tests.unit.router.routes import Request, add_sub_request


def forwarded(pattern: str, headers: dict[str, str | bytes]) -> dict[str, str]:
    body = add_sub_request(id="7").SerializeToString()
    request = Request.FromString(HeaderForwarding(pattern).forward(headers, body))
    assert request.id == "7"
    assert len(request.inputs) == len(request.raw_input_contents) == 2
    return {key: value.string_param for key, value in request.parameters.items()}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", set()),
        ("my-", {"my-key", "my-other"}),
        ("^my-key$", {"my-key"}),
        ("MY-KEY", {"my-key"}),
        ("(?-i)MY-KEY", set()),
        ("(?-i)my-key", {"my-key"}),
        (".*", {"my-key", "my-other", "user-agent"}),
    ],
)
def test_the_pattern_is_looked_for_in_the_names(pattern: str, names: set[str]) -> None:
    headers: dict[str, str | bytes] = {
        "my-key": "1",
        "my-other": "2",
        "user-agent": "curl",
        "my-bin": b"\xff",
        "x-envoy-original-path": "/v2",
        "content-type": "application/grpc",
    }
    assert set(forwarded(pattern, headers)) == names


def test_the_values_stay_as_they_are() -> None:
    assert forwarded("k", {"k": "a b"}) == {"k": "a b"}


def test_a_request_without_such_headers_is_left_alone() -> None:
    body = add_sub_request().SerializeToString()
    assert HeaderForwarding("^x$").forward({"y": "1"}, body) is body


def test_fields_stay_in_their_order_behind_the_clients_own_parameters() -> None:
    request = add_sub_request(id="7")
    request.parameters["k"].string_param = "client"
    body = HeaderForwarding("k").forward({"k": "header"}, request.SerializeToString())
    found = Request.FromString(body)
    assert found.parameters["k"].string_param == "header"
    assert body == found.SerializeToString() or body.index(b"header") < body.index(
        b"INPUT0"
    )


@pytest.mark.parametrize(
    "name", ["priority", "timeout", "sequence_id", "headers", "triton_x"]
)
def test_names_with_a_meaning_of_their_own_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"Header '{name}' is reserved"):
        forwarded(".*", {name: "1"})


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x0a\xff", b"\x22\x01"])
def test_garbage_stays_garbage(body: bytes) -> None:
    assert HeaderForwarding("k").forward({"k": "v"}, body).endswith(body)
