"""What a traced request says of its trace."""

import pytest

from services.core.trace_token import TraceToken


@pytest.mark.parametrize("traceparent", ["", "00-0af7-b7ad-01"])
@pytest.mark.parametrize("endpoint", ["unix:/tmp/a b/router.sock", "10.0.0.1:8010"])
def test_a_token_is_read_as_it_was_written(traceparent: str, endpoint: str) -> None:
    token = TraceToken(key="k-1", endpoint=endpoint, traceparent=traceparent)
    assert TraceToken.read(token.text) == token


@pytest.mark.parametrize("text", ["", "k", "k -"])
def test_other_texts_are_none(text: str) -> None:
    assert TraceToken.read(text) is None
