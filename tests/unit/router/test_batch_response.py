"""What cannot be read of a worker's answer."""

import pytest

from services.core.wire_format import WireFormatError
from services.router.batch_response import replies_of, timing_of


@pytest.mark.parametrize(
    "message",
    [b"\x0a\x03\x09\x00\x00", b"\x12\x03\x12\x05\x00"],
)
def test_what_a_worker_cannot_have_meant_is_an_error_of_its_own(message: bytes) -> None:
    with pytest.raises(WireFormatError):
        list(replies_of(message, timing_of(message)[1]))
