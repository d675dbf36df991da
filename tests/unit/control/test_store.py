"""Control's memory, in a real Valkey."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
import redis.asyncio

from services.control.model_registry import Generation, PlacedInstance
from services.control.snapshot import Snapshot, from_fields, snapshot_of, to_fields
from services.control.store import EPOCH_KEY, SNAPSHOT_KEY, RedisStore
from services.core.lifecycle import ModelState
from tests.unit.control.reconciler_world import spec
from tests.unit.control.valkey import Valkey, valkey_folder


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with valkey_folder() as server:
        yield server


@contextlib.asynccontextmanager
async def store_at(url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(url)
    writing = asyncio.create_task(store.run())
    try:
        yield store
    finally:
        writing.cancel()
        await store.close()


def generation(number: int, state: ModelState = ModelState.READY) -> Generation:
    return Generation(
        number=number,
        spec=spec(f"m{number}", 3, content="\udcffa\0"[1:]),
        state=state,
        former={"w1": (PlacedInstance(name="m_0_0", group=0),)},
    )


SNAPSHOT = Snapshot(
    generations=(generation(7), generation(2**63)),
    router_endpoints=("unix:/run/r1", "host:8010"),
)


async def until_stored(url: str, snapshot: Snapshot) -> None:
    """Wait until another reader finds exactly this snapshot."""
    reader = RedisStore(url)
    async with asyncio.timeout(10):
        while await reader.restore() != snapshot:
            pass
    await reader.close()


async def test_what_is_saved_is_restored_by_a_successor(valkey: Valkey) -> None:
    valkey.start()
    async with store_at(valkey.url) as store:
        assert await store.restore() == Snapshot()
        store.save(Snapshot(generations=(generation(1),)))
        store.save(SNAPSHOT)
        await until_stored(valkey.url, SNAPSHOT)
        store.save(Snapshot(router_endpoints=("a",)))
        await until_stored(valkey.url, Snapshot(router_endpoints=("a",)))


async def test_closing_writes_what_was_not_written_yet(valkey: Valkey) -> None:
    valkey.start()
    store = RedisStore(valkey.url)
    store.save(SNAPSHOT)
    await store.close()
    await until_stored(valkey.url, SNAPSHOT)


async def test_what_is_saved_during_a_write_is_written_after_it(
    valkey: Valkey,
) -> None:
    valkey.start()
    store = RedisStore(valkey.url)
    store.save(Snapshot(router_endpoints=("a",)))
    writing = asyncio.create_task(store._write())
    await asyncio.sleep(0)
    store.save(SNAPSHOT)
    await writing
    await store.close()
    await until_stored(valkey.url, SNAPSHOT)


async def test_no_epoch_is_given_twice_even_if_the_clock_goes_back(
    valkey: Valkey,
) -> None:
    valkey.start()
    async with store_at(valkey.url) as store:
        assert await store.begin_epoch(1000) == 1000
        assert await store.begin_epoch(1000) == 1001
        assert await store.begin_epoch(900) == 1002
        assert await store.begin_epoch(2000) == 2000


async def test_control_goes_on_without_a_store_and_writes_when_it_comes(
    valkey: Valkey,
) -> None:
    async with store_at(valkey.url) as store:
        assert await store.begin_epoch(1000) == 1000
        assert await store.restore() == Snapshot()
        store.save(SNAPSHOT)
        valkey.start()
        await until_stored(valkey.url, SNAPSHOT)


async def test_a_store_that_restarts_gets_what_it_missed(valkey: Valkey) -> None:
    valkey.start()
    async with store_at(valkey.url) as store:
        store.save(Snapshot(router_endpoints=("a",)))
        await until_stored(valkey.url, Snapshot(router_endpoints=("a",)))
        valkey.stop()
        store.save(SNAPSHOT)
        valkey.start()
        await until_stored(valkey.url, SNAPSHOT)


async def test_an_unreadable_snapshot_is_no_snapshot(valkey: Valkey) -> None:
    valkey.start()
    client = redis.asyncio.Redis.from_url(valkey.url)
    await client.hset(SNAPSHOT_KEY, "7", "no JSON")
    async with store_at(valkey.url) as store:
        assert await store.restore() == Snapshot()
    await client.aclose()


def test_keys_carry_the_schemas_version() -> None:
    assert {EPOCH_KEY.split(":")[:2][1], SNAPSHOT_KEY.split(":")[:2][1]} == {"1"}


def test_a_snapshot_survives_its_fields() -> None:
    assert from_fields(to_fields(SNAPSHOT)) == SNAPSHOT


@pytest.mark.parametrize(
    "fields", [{"7": "{}"}, {"x": "{}"}, {"7": "[]"}, {"routers": "{"}]
)
def test_fields_of_another_form_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        from_fields(fields)


def test_only_what_workers_may_have_is_kept() -> None:
    placed = generation(1)
    failed = Generation(number=2, spec=spec(), is_failed=True, former=placed.former)
    nowhere = Generation(number=3, spec=spec(), state=ModelState.LOADING)
    going = generation(4, ModelState.UNLOADING)
    kept = snapshot_of([placed, failed, nowhere, going], ["r"])
    assert kept == Snapshot(generations=(placed,), router_endpoints=("r",))
