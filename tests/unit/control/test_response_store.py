"""Responses in a real Valkey that may be slow or absent."""

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from services.control.response_store import ResponsesAwayError, ResponseStore
from services.core.cache_config import RedisCache
from tests.unit.control.valkey import Valkey, valkey_folder

VALUE = b"\x00" * 1000
# Room for three values with what they cost beside their bytes.
SIZE = 3 * (len(VALUE) + 512)


@pytest.fixture
async def valkey() -> AsyncIterator[Valkey]:
    with valkey_folder() as server:
        server.start()
        yield server


@pytest.fixture
async def store(valkey: Valkey) -> AsyncIterator[ResponseStore]:
    cache = RedisCache(size_bytes=SIZE, lifetime_s=60)
    store = ResponseStore(valkey.url, cache, timeout_s=30.0)
    yield store
    await store.close()


async def kept(store: ResponseStore, *keys: bytes) -> list[bool]:
    return [await store.find(key) is not None for key in keys]


async def test_what_is_kept_is_found_again_byte_for_byte(store: ResponseStore) -> None:
    value = bytes(range(256))
    assert await store.find(b"a") is None
    assert await store.insert(b"a", value) == 0
    assert await store.find(b"a") == value


async def test_what_was_used_longest_ago_goes_first(store: ResponseStore) -> None:
    for key in (b"a", b"b", b"c"):
        await store.insert(key, VALUE)
    await store.find(b"a")
    assert await store.insert(b"d", VALUE) == 1
    assert await kept(store, b"a", b"b", b"c", b"d") == [True, False, True, True]


async def test_a_value_that_takes_the_place_of_another_is_counted_once(
    store: ResponseStore,
) -> None:
    for _ in range(10):
        assert await store.insert(b"a", VALUE) == 0
    assert await store.insert(b"b", VALUE) == 0
    assert await kept(store, b"a", b"b") == [True, True]


async def test_a_value_larger_than_everything_is_not_kept(store: ResponseStore) -> None:
    await store.insert(b"a", VALUE)
    assert await store.insert(b"huge", bytes(SIZE)) == 0
    assert await kept(store, b"a", b"huge") == [True, False]


async def test_everything_is_within_the_budget_and_expires(
    store: ResponseStore, valkey: Valkey
) -> None:
    for number in range(40):
        await store.insert(b"%d" % number, bytes(number * 30))
    client = redis.asyncio.Redis.from_url(valkey.url)
    sizes = await client.hgetall("nereid:1:responses:sizes")
    total = await client.get("nereid:1:responses:bytes")
    assert total is not None
    assert int(total) == sum(map(int, sizes.values())) <= SIZE
    names = [n async for n in client.scan_iter() if n in sizes]
    assert len(names) == len(sizes) > 0
    assert all([0 < await client.ttl(name) <= 60 for name in names])
    await client.aclose()


async def test_a_response_that_expired_makes_room(
    store: ResponseStore, valkey: Valkey
) -> None:
    for key in (b"a", b"b", b"c"):
        await store.insert(key, VALUE)
    client = redis.asyncio.Redis.from_url(valkey.url)
    await client.delete("nereid:1:responses:a")  # as time does
    await client.aclose()
    assert await store.insert(b"d", VALUE) == 1
    assert await kept(store, b"a", b"b", b"c", b"d") == [False, True, True, True]


async def test_an_absent_redis_is_said_to_be_away() -> None:
    store = ResponseStore("unix:///nowhere", RedisCache())
    with pytest.raises(ResponsesAwayError):
        await store.find(b"a")
    with pytest.raises(ResponsesAwayError):
        await store.insert(b"a", b"")
    await store.close()


async def test_a_slow_redis_is_not_waited_for(valkey: Valkey) -> None:
    store = ResponseStore(valkey.url, RedisCache())
    assert valkey._process is not None
    valkey._process.send_signal(signal.SIGSTOP)
    try:
        async with asyncio.timeout(10):
            with pytest.raises(ResponsesAwayError):
                await store.find(b"a")
    finally:
        valkey._process.send_signal(signal.SIGCONT)
    await store.close()
