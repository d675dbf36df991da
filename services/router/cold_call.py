"""Everything that is not inference: ordinary blocking code on a small pool."""

from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeAlias

import structlog

from services.core.completion_queue import (
    NativeCall,
    NativeMetadata,
    UnaryCall,
)
from services.core.errors import ServingError
from services.core.status import status_of

ColdMethod: TypeAlias = Callable[[bytes], bytes]

_log = structlog.get_logger(__name__)


class ColdCall(UnaryCall):
    """One call of a method that may block."""

    __slots__ = ("_handle", "_method", "_pool")

    def __init__(
        self,
        call: NativeCall,
        method: str,
        metadata: NativeMetadata,
        *,
        handle: ColdMethod,
        pool: Executor,
    ) -> None:
        """Take over a call, to be answered by ``handle`` on ``pool``."""
        self._handle = handle
        self._pool = pool
        self._method = method
        super().__init__(call, method, metadata)

    def received(self, message: bytes) -> None:
        """Give the request to the pool."""
        self._pool.submit(self._run, message)

    def _run(self, message: bytes) -> None:
        try:
            self.answer(self._handle(message))
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            if not isinstance(error, ServingError):
                _log.exception("a method failed", method=self._method)
            code, details = status_of(error)
            self.fail(code.value[0], details)


def cold_calls(
    handle: ColdMethod, pool: Executor
) -> Callable[[NativeCall, str, NativeMetadata], ColdCall]:
    """Return the factory of calls that ``handle`` answers."""

    def accept(call: NativeCall, method: str, metadata: NativeMetadata) -> ColdCall:
        return ColdCall(call, method, metadata, handle=handle, pool=pool)

    return accept
