"""Quarantine, and what of a request is its content."""

import pytest

from protos import inference_pb2 as pb
from services.router.quarantine import Quarantine
from services.router.queue_limits import backlog_hold_until, hold_until
from services.router.request_content import content_digest, request_prefix


def body(name: str = "m", request_id: str = "", raw: bytes = b"x") -> bytes:
    message = pb.ModelInferRequest(
        model_name=name, id=request_id, raw_input_contents=[raw]
    )
    return message.SerializeToString()


def test_the_id_is_not_part_of_the_content() -> None:
    assert content_digest(body(request_id="1")) == content_digest(body())
    assert content_digest(body(raw=b"y")) != content_digest(body())
    assert content_digest(body(name="n")) != content_digest(body())


def test_bytes_that_are_no_message_have_a_content_too() -> None:
    assert content_digest(b"\xff\xff") != content_digest(b"\xff\xfe")


@pytest.mark.parametrize(
    ("request_id", "prefix"),
    [("", "<id_unknown>"), ("q1", "q1"), ("x" * 200, "x" * 200)],
)
def test_a_message_about_a_request_begins_with_its_id(
    request_id: str, prefix: str
) -> None:
    assert request_prefix(body(request_id=request_id)) == f"[request id: {prefix}] "


def test_bytes_that_are_no_message_have_no_id() -> None:
    assert request_prefix(b"\xff\xff") == "[request id: <id_unknown>] "


def test_a_content_is_refused_for_a_while() -> None:
    quarantine = Quarantine(duration_ns=10, most=4)
    quarantine.add(body(), now_ns=5)
    assert quarantine.holds(body(request_id="other"), now_ns=14)
    assert not quarantine.holds(body(raw=b"y"), now_ns=14)
    assert not quarantine.holds(body(), now_ns=15)
    assert quarantine.is_empty(now_ns=15)


def test_new_harm_renews_the_quarantine() -> None:
    quarantine = Quarantine(duration_ns=10, most=4)
    quarantine.add(body(), now_ns=0)
    quarantine.add(body(raw=b"y"), now_ns=1)
    quarantine.add(body(), now_ns=9)
    assert quarantine.holds(body(), now_ns=18)
    assert not quarantine.holds(body(raw=b"y"), now_ns=18)


def test_the_oldest_give_way() -> None:
    quarantine = Quarantine(duration_ns=10, most=2)
    for raw in (b"1", b"2", b"3"):
        quarantine.add(body(raw=raw), now_ns=0)
    held = [quarantine.holds(body(raw=raw), now_ns=1) for raw in (b"1", b"2", b"3")]
    assert held == [False, True, True]


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 0),
        ({"TRITONSERVER_DELAY_SCHEDULER": "12"}, 12),
        ({"TRITONSERVER_DELAY_SCHEDULER": "x"}, 0),
    ],
)
def test_the_hold_hook_is_a_number(environment: dict[str, str], count: int) -> None:
    assert hold_until(environment) == count
    renamed = {name.replace("R_D", "R_BACKLOG_D"): n for name, n in environment.items()}
    assert backlog_hold_until(renamed) == count
