"""Whether what a runtime has loaded can be called at all."""

from collections.abc import Sequence
from typing import Final

from services.core.errors import BackendError

_WAYS: Final = ("execute", "execute_requests", "execute_decoupled")


def require_backends(model: str, backends: Sequence[object], count: int) -> None:
    """Refuse what is not one backend for each of ``count`` instances.

    Raises:
        BackendError: naming both numbers, or what is missing.
    """
    if len(backends) != count:
        message = (
            f"the backend of model '{model}' loaded {len(backends)} instances where"
            f" {count} were wanted"
        )
        raise BackendError(message)
    for backend in backends:
        ways = [way for way in _WAYS if callable(getattr(backend, way, None))]
        if not ways or not callable(getattr(backend, "unload", None)):
            missing = "unload" if ways else f"none of {', '.join(_WAYS)}"
            message = (
                f"the backend of model '{model}' loaded a {type(backend).__name__},"
                f" which has {'no ' if ways else ''}{missing}"
            )
            raise BackendError(message)
