"""States of sequences in a real Valkey: any bytes, as long as they are needed."""

from collections.abc import AsyncIterator, Iterator

import pytest
import redis.asyncio

from services.control.store import (
    STATE_PREFIX,
    NoStore,
    RedisStore,
    Store,
    StoreAwayError,
)
from tests.unit.control.valkey import Valkey, valkey_folder


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with valkey_folder() as server:
        server.start()
        yield server


@pytest.fixture(params=["redis", "none"])
async def store(request: pytest.FixtureRequest, valkey: Valkey) -> AsyncIterator[Store]:
    store = RedisStore(valkey.url) if request.param == "redis" else NoStore()
    yield store
    await store.close()


async def test_a_state_is_kept_byte_by_byte_until_it_is_forgotten(store: Store) -> None:
    data = bytes(range(256)) * 1000
    assert await store.state("k") == b""
    await store.save_state("k", b"old", 60_000)
    await store.save_state("k", data, 60_000)
    assert await store.state("k") == data
    assert await store.state("other") == b""
    await store.save_state("k", b"", 0)
    assert await store.state("k") == b""


async def test_a_state_expires_whatever_becomes_of_its_router(valkey: Valkey) -> None:
    store = RedisStore(valkey.url)
    await store.save_state("k", b"state", 60_000)
    async with redis.asyncio.Redis.from_url(valkey.url) as client:
        assert 0 < await client.pttl(STATE_PREFIX + "k") <= 60_000
    await store.close()


async def test_a_store_that_is_away_says_so(valkey: Valkey) -> None:
    store = RedisStore(valkey.url)
    valkey.stop()
    with pytest.raises(StoreAwayError):
        await store.save_state("k", b"state", 1000)
    with pytest.raises(StoreAwayError):
        await store.state("k")
    await store.close()
