"""Work that waits for workers, and does not wait for ever."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from services.control.patience import patience
from services.control.supervisor import Supervisor
from services.core.errors import ModelNotReadyError

T = TypeVar("T")


async def while_workers_are_there(
    supervisor: Supervisor, work: Coroutine[Any, Any, T], patience_s: float
) -> T:
    """Return what ``work`` does, unless nobody is there to do it.

    Args:
        supervisor: Knows the workers.
        work: Ended if it fails for want of a worker.
        patience_s: How long there may be none.

    Raises:
        ModelNotReadyError: no worker was attached for so long.
    """
    working = asyncio.ensure_future(work)
    try:
        while not working.done():
            await _first(working, supervisor.until(lambda: not supervisor.worker_count))
            if not working.done():
                await _patiently(working, supervisor, patience_s)
        return working.result()
    finally:
        working.cancel()


async def _patiently(
    working: "asyncio.Future[T]", supervisor: Supervisor, patience_s: float
) -> None:
    coming = supervisor.until(lambda: supervisor.worker_count > 0)
    try:
        async with patience(patience_s):
            await _first(working, coming)
    except TimeoutError:
        raise ModelNotReadyError("no worker is attached to load the model") from None


async def _first(
    working: "asyncio.Future[T]", other: Coroutine[Any, Any, None]
) -> None:
    """Wait for either; end the other."""
    waiting = asyncio.ensure_future(other)
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
