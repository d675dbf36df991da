"""The states of sequences that routers want kept: to the store and back."""

import asyncio
from typing import Final, Never, Protocol

import structlog

from services.control.commands import RouterOrder, StateFound, StateStored
from services.control.store import Store, StoreAwayError

_RETRY_S: Final = 0.5

_log = structlog.get_logger(__name__)


class Router(Protocol):
    """Whose states they are."""

    def tell(self, order: RouterOrder) -> None:
        """Have an order sent to it."""
        ...


class StateCheckpoints:
    """Writes states one after the other; a newer one takes the place of one waiting."""

    def __init__(self, store: Store) -> None:
        """Keep them in ``store``."""
        self._store = store
        # By key: whom to tell, the step, the state, milliseconds that it is kept.
        self._waiting: dict[str, tuple[Router, int, bytes, int]] = {}
        self._has_waiting = asyncio.Event()
        self._fetching: set[asyncio.Task[None]] = set()

    def save(
        self, router: Router, key: str, step: int, data: bytes, expires_ms: int
    ) -> None:
        """Have a state written soon, and the router told."""
        self._waiting[key] = (router, step, data, expires_ms)
        self._has_waiting.set()

    def forget(self, router: Router, key: str) -> None:
        """Have a state deleted soon."""
        self.save(router, key, 0, b"", 0)

    def fetch(self, router: Router, key: str) -> None:
        """Have the router told what is stored under ``key``."""
        task = asyncio.get_running_loop().create_task(self._fetch(router, key))
        self._fetching.add(task)
        task.add_done_callback(self._fetching.discard)

    async def run(self) -> Never:
        """Write what waits, again and again while the store is away."""
        while True:
            await self._has_waiting.wait()
            try:
                await self._write()
            except StoreAwayError as error:
                _log.warning("states cannot be stored", reason=str(error))
                await asyncio.sleep(_RETRY_S)

    async def _write(self) -> None:
        while self._waiting:
            key, entry = next(iter(self._waiting.items()))
            router, step, data, expires_ms = entry
            await self._store.save_state(key, data, expires_ms)
            if self._waiting.get(key) is entry:
                del self._waiting[key]
            if step:
                router.tell(StateStored(key=key, step=step))
        self._has_waiting.clear()

    async def _fetch(self, router: Router, key: str) -> None:
        waiting = self._waiting.get(key)
        try:
            data = waiting[2] if waiting else await self._store.state(key)
        except StoreAwayError as error:
            _log.warning("a state cannot be read", reason=str(error))
            data = b""
        router.tell(StateFound(key=key, data=data or None))
