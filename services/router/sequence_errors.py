"""What clients are told when their sequences cannot go on. Pure.

Where Triton has words for it, they are its sequence batcher's.
"""

from typing import Final

from services.core.errors import (
    InvalidRequestError,
    ModelNotReadyError,
    OverloadedError,
    RequestCancelledError,
)
from services.router.request_content import request_prefix
from services.router.route_table import Route
from services.router.sequence import CorrelationId

_EXPIRED_TEXT: Final = "timeout of the corresponding sequence has been expired"
_ANEW_TEXT: Final = "begin the sequence anew with the START flag"


def too_many_rows(model: str, body: bytes) -> InvalidRequestError:
    """Return why a request of more than one row is refused."""
    return InvalidRequestError(
        f"{request_prefix(body)}inference request to model '{model}' must specify "
        "batch-size 1 due to requirements of sequence batcher"
    )


def overloaded(model: str, body: bytes, size_bytes: int) -> OverloadedError:
    """Return why a sequence ended that had a request too many."""
    return OverloadedError(
        f"{request_prefix(body)}Exceeds maximum queue size: {size_bytes} bytes wait "
        f"for model '{model}'; {_ANEW_TEXT}"
    )


def expired() -> OverloadedError:
    """Return why a sequence ended that waited too long for a slot."""
    return OverloadedError(_EXPIRED_TEXT)


def cancelled(correlation_id: CorrelationId) -> RequestCancelledError:
    """Return why the requests behind a cancelled one are refused."""
    return RequestCancelledError(
        f"a request of sequence {correlation_id} was cancelled, which ends the sequence"
    )


def lost(model: str) -> ModelNotReadyError:
    """Return why a sequence ended whose worker is gone."""
    return ModelNotReadyError(
        f"the worker that kept the sequence's state of model '{model}' was lost; "
        f"{_ANEW_TEXT}"
    )


def unserved(route: Route) -> ModelNotReadyError:
    """Return why nobody may wait any longer."""
    return ModelNotReadyError(
        f"no worker serves model '{route.model}' version {route.version_text} now"
    )
