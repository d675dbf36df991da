"""The states of sequences, between routers and the store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from services.control.commands import RouterOrder, StateFound, StateStored
from services.control.state_checkpoints import StateCheckpoints
from services.control.store import NoStore, StoreAwayError

WAIT_S = 10


class Router:
    """Is told."""

    def __init__(self) -> None:
        self.orders: asyncio.Queue[RouterOrder] = asyncio.Queue()

    def tell(self, order: RouterOrder) -> None:
        self.orders.put_nowait(order)

    async def next(self) -> RouterOrder:
        return await asyncio.wait_for(self.orders.get(), WAIT_S)


class MoodyStore(NoStore):
    """Is away until it is told to be there."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.tried = asyncio.Event()
        self.may_save = asyncio.Event()
        self.may_save.set()

    async def save_state(self, key: str, data: bytes, expires_ms: int) -> None:
        self.tried.set()
        await self.may_save.wait()
        if self.is_away:
            raise StoreAwayError("away")
        await super().save_state(key, data, expires_ms)

    async def state(self, key: str) -> bytes:
        if self.is_away:
            raise StoreAwayError("away")
        return await super().state(key)


@pytest.fixture
def store() -> MoodyStore:
    return MoodyStore()


@pytest.fixture
async def states(store: MoodyStore) -> AsyncIterator[StateCheckpoints]:
    made = StateCheckpoints(store)
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_a_state_is_confirmed_when_it_is_stored(
    states: StateCheckpoints, store: MoodyStore
) -> None:
    router = Router()
    states.save(router, "k", 3, b"state", 1000)
    assert await router.next() == StateStored(key="k", step=3)
    assert await store.state("k") == b"state"
    states.fetch(router, "k")
    assert await router.next() == StateFound(key="k", data=b"state")


async def test_what_is_over_is_forgotten_without_a_word(
    states: StateCheckpoints, store: MoodyStore
) -> None:
    router = Router()
    states.save(router, "k", 1, b"state", 1000)
    states.forget(router, "k")
    states.save(router, "other", 2, b"state", 1000)
    assert await router.next() == StateStored(key="other", step=2)
    assert await store.state("k") == b""
    states.fetch(router, "k")
    assert await router.next() == StateFound(key="k", data=None)


async def test_a_state_waits_while_the_store_is_away_and_can_be_had_meanwhile(
    states: StateCheckpoints, store: MoodyStore
) -> None:
    router = Router()
    store.is_away = True
    states.save(router, "k", 1, b"old", 1000)
    await asyncio.wait_for(store.tried.wait(), WAIT_S)
    states.save(router, "k", 2, b"new", 1000)
    states.fetch(router, "k")
    assert await router.next() == StateFound(key="k", data=b"new")
    states.fetch(router, "unknown")
    assert await router.next() == StateFound(key="unknown", data=None)
    store.is_away = False
    assert await router.next() == StateStored(key="k", step=2)


async def test_a_store_without_redis_lets_go_of_what_has_expired() -> None:
    store = NoStore()
    await store.save_state("k", b"state", 0)
    await store.save_state("other", b"state", 10_000)
    assert await store.state("k") == b""
    assert await store.state("other") == b"state"


async def test_a_state_that_comes_while_an_older_one_is_written_is_written_too(
    states: StateCheckpoints, store: MoodyStore
) -> None:
    router = Router()
    store.may_save.clear()
    states.save(router, "k", 1, b"old", 1000)
    await asyncio.wait_for(store.tried.wait(), WAIT_S)
    states.save(router, "k", 2, b"new", 1000)
    store.may_save.set()
    assert await router.next() == StateStored(key="k", step=1)
    assert await router.next() == StateStored(key="k", step=2)
    assert await store.state("k") == b"new"
