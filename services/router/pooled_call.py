"""A call whose answer may block: made on a pool, away from the reactor."""

from concurrent.futures import Executor

import structlog

from services.core.completion_queue import NativeCall, NativeMetadata, UnaryCall
from services.core.errors import ServingError

_log = structlog.get_logger(__name__)


class PooledCall(UnaryCall):
    """One call, answered by ``respond`` on a pool or else by ``refuse``."""

    __slots__ = ("_method", "_pool")

    def __init__(
        self,
        call: NativeCall,
        method: str,
        metadata: NativeMetadata,
        *,
        pool: Executor,
    ) -> None:
        """Take over a call of ``method``, to be answered on ``pool``."""
        self._pool = pool
        self._method = method
        super().__init__(call, method, metadata)

    def received(self, message: bytes) -> None:
        """Give the request to the pool."""
        self._pool.submit(self._run, message)

    def respond(self, message: bytes) -> None:
        """Answer the request ``message``, or raise why not; on the pool."""
        raise NotImplementedError

    def refuse(self, error: Exception) -> None:
        """Answer with ``error``, which ``respond`` raised; on the pool."""
        raise NotImplementedError

    def _run(self, message: bytes) -> None:
        try:
            self.respond(message)
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            if not isinstance(error, ServingError):
                _log.exception("a method failed", method=self._method)
            self.refuse(error)
