"""What one control process is made of, and the work that goes on beside its doors."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from services.control.catalog import Catalog
from services.control.kept_metrics import KeptMetrics
from services.control.live_settings import LiveSettings
from services.control.response_store import ResponseStore
from services.control.state_checkpoints import StateCheckpoints
from services.control.statistics import Statistics
from services.control.store import Store
from services.control.supervisor import Supervisor

_CANCEL_EVERY_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The objects that share one event loop.

    Attributes:
        store: Redis, or nothing that lasts.
        supervisor: Knows workers, routers and generations.
        catalog: Knows the model repository.
        statistics: Counts requests, over all routers and restarts.
        live: What clients may change at run time.
        metrics: What workers and routers show of themselves.
        states: Keeps states of sequences for routers.
        responses: Keeps responses for routers; None without such a cache.
    """

    store: Store
    supervisor: Supervisor
    catalog: Catalog
    statistics: Statistics
    live: LiveSettings
    metrics: KeptMetrics
    states: StateCheckpoints
    responses: ResponseStore | None = None

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Let the parts do what nobody calls them for, while the block runs."""
        work: tuple[Callable[[], Awaitable[None]], ...] = (
            self.store.run,
            self.statistics.run,
            self.states.run,
            self.metrics.restore,
            self.catalog.tidy,
        )
        async with asyncio.TaskGroup() as tasks:
            working = [tasks.create_task(_do(each)) for each in work]
            try:
                yield
            finally:
                for task in working:
                    await _end(task)

    async def close(self) -> None:
        """Write down what is still to be written, and let go."""
        self.live.traces.close()
        self.catalog.close()
        await self.statistics.flush()
        await self.store.close()
        if self.responses is not None:
            await self.responses.close()


async def _do(work: Callable[[], Awaitable[None]]) -> None:
    await work()


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel until it has ended.

    Once is not always enough: redis-py 8.1 loses a cancellation that comes just as its
    answer does, and the writer would wait for the next change for ever.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=_CANCEL_EVERY_S)
