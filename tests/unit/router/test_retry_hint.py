"""What tells a client that was turned away when to come again."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from services.router.retry_hint import grpc_hint, http_hint
from tests.unit.router.routes import add_sub_request
from tests.unit.router.running import running_router

UNAVAILABLE, INTERNAL = 14, 13


def test_only_an_unavailable_server_is_worth_another_try() -> None:
    assert grpc_hint(INTERNAL, "") is None
    assert http_hint(INTERNAL) is None
    assert http_hint(UNAVAILABLE) == (("retry-after", "1"),)


def test_a_text_that_would_not_fit_twice_goes_alone() -> None:
    assert grpc_hint(UNAVAILABLE, "x" * 1024) is not None
    assert grpc_hint(UNAVAILABLE, "x" * 1025) is None


def test_a_refused_client_is_told_when_to_come_again(tmp_path: Path) -> None:
    with running_router(tmp_path) as router:
        router.on_loop(lambda: setattr(router.inference, "stopping", True))
        with pytest.raises(grpc.RpcError) as caught:
            router.infer(add_sub_request()).result()
        error: Any = caught.value
        trailers = dict(error.trailing_metadata())
    status = Status.FromString(trailers["grpc-status-details-bin"])
    info = RetryInfo()
    assert status.details[0].Unpack(info)
    assert (status.code, info.retry_delay.seconds) == (UNAVAILABLE, 1)
