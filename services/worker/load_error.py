"""Why a model could not be loaded, as the repository index says it."""

from typing import Final

import structlog

from services.core.errors import (
    BackendError,
    InvalidRequestError,
    ModelNotFoundError,
    ServingError,
    UnsupportedError,
)

# What precedes a message in the repository index, by the kind of error.
_KINDS: Final = (
    (InvalidRequestError, "Invalid argument"),
    (ModelNotFoundError, "Not found"),
    (UnsupportedError, "Unsupported"),
)

_log = structlog.get_logger(__name__)


def describe(error: Exception) -> str:
    """Return what the repository index says of ``error``.

    Source:
        Triton's status codes in words, e.g. "Internal: onnx runtime error 7: …".
    """
    if not isinstance(error, ServingError):
        _log.error("loading failed unexpectedly", exc_info=error)
        error = BackendError(f"{type(error).__name__}: {error}")
    for kind, words in _KINDS:
        if isinstance(error, kind):
            return f"{words}: {error}"
    return f"Internal: {error}"
