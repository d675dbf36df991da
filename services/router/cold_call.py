"""Everything that is not inference: ordinary blocking code on a small pool."""

from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeAlias

from services.core.completion_queue import NativeCall, NativeMetadata
from services.core.status import status_of
from services.router.pooled_call import PooledCall

ColdMethod: TypeAlias = Callable[[bytes], bytes]


class ColdCall(PooledCall):
    """One call of a method that may block."""

    __slots__ = ("_handle",)

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
        super().__init__(call, method, metadata, pool=pool)

    def respond(self, message: bytes) -> None:
        """Answer with what the method returns."""
        self.answer(self._handle(message))

    def refuse(self, error: Exception) -> None:
        """Answer with the status of ``error``."""
        code, details = status_of(error)
        self.fail(code.value[0], details)


def cold_calls(
    handle: ColdMethod, pool: Executor
) -> Callable[[NativeCall, str, NativeMetadata], ColdCall]:
    """Return the factory of calls that ``handle`` answers."""

    def accept(call: NativeCall, method: str, metadata: NativeMetadata) -> ColdCall:
        return ColdCall(call, method, metadata, handle=handle, pool=pool)

    return accept
