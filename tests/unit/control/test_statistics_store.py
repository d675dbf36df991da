"""Statistics in a real Valkey: applied once each, added up, there after a restart."""

from collections.abc import AsyncIterator, Iterator

import pytest
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st

from services.control.statistics_keys import (
    INDEX_KEY,
    hash_key,
    member_of,
    reporter_key,
    version_of,
)
from services.control.statistics_totals import Counted, StatisticsReport
from services.control.store import NoStore, RedisStore, Store, StoreAwayError
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


def counted(last_inference_ms: int = 0, **counts: int) -> Counted:
    return Counted(last_inference_ms=last_inference_ms, counts=counts)


def report(sequence: int, model: str = "m", **counts: int) -> StatisticsReport:
    return StatisticsReport(
        sequence=sequence, increments={(model, 1): counted(**counts)}
    )


async def test_reports_of_all_routers_add_up(store: Store) -> None:
    assert await store.totals() == {}
    await store.apply("r1", report(1, a=1, b=2))
    await store.apply("r1", report(2, b=3))
    await store.apply("r2", report(1, "n", b=4))
    await store.apply("r2", report(2, b=5))
    assert await store.totals() == {
        ("m", 1): counted(a=1, b=10),
        ("n", 1): counted(b=4),
    }


async def test_a_report_that_comes_again_counts_nothing(store: Store) -> None:
    for sequence in (1, 2):
        for is_new in (True, False):
            assert await store.apply("r1", report(sequence, a=5)) is is_new
    assert not await store.apply("r1", report(1, a=5))
    assert await store.totals() == {("m", 1): counted(a=10)}


async def test_the_last_inference_is_the_latest_of_all(store: Store) -> None:
    for sequence, at_ms in enumerate((1_700_000_000_007, 1_700_000_000_009, 0, 8), 1):
        increments = {("m", 1): counted(at_ms, a=1)}
        await store.apply(
            "r1", StatisticsReport(sequence=sequence, increments=increments)
        )
    assert (await store.totals())["m", 1] == counted(1_700_000_000_009, a=4)


async def test_a_model_is_reset_with_all_its_versions_and_counts_on(
    store: Store,
) -> None:
    increments = {
        ("m", 2): counted(a=1),
        ("m", 10): counted(a=1),
        ("mm", 1): counted(a=1),
    }
    await store.apply("r1", StatisticsReport(sequence=1, increments=increments))
    assert await store.reset("m") == (2, 10)
    assert await store.reset("m") == ()
    await store.apply("r1", report(2, a=1))
    assert await store.totals() == {
        ("m", 1): counted(a=1),
        ("mm", 1): counted(a=1),
    }


async def test_statistics_survive_the_servers_restart(valkey: Valkey) -> None:
    store = RedisStore(valkey.url)
    await store.apply("r1", report(1, a=2**40))
    valkey.stop()
    with pytest.raises(StoreAwayError):
        await store.totals()
    with pytest.raises(StoreAwayError):
        await store.apply("r1", report(2, a=1))
    with pytest.raises(StoreAwayError):
        await store.reset("m")
    valkey.start()
    await store.apply("r1", report(1, a=2**40))
    await store.apply("r1", report(2, a=1))
    assert await store.totals() == {("m", 1): counted(a=2**40 + 1)}
    await store.close()


async def test_a_report_is_applied_whole_or_not_at_all(valkey: Valkey) -> None:
    """Its number, every counter and the index change in one script."""
    store = RedisStore(valkey.url)
    await store.apply("r1", report(7, a=1))
    client = redis.asyncio.Redis.from_url(valkey.url, decode_responses=True)
    assert await client.get(reporter_key("r1")) == "7"
    assert await client.ttl(reporter_key("r1")) > 3600
    assert await client.smembers(INDEX_KEY) == {"1:m"}
    assert await client.hgetall(hash_key("1:m")) == {"a": "1"}
    await client.aclose()
    await store.close()


def test_the_keys_carry_the_schemas_version() -> None:
    for key in (INDEX_KEY, hash_key("1:m"), reporter_key("r")):
        assert key.startswith("nereid:1:statistics:")


@given(st.text(), st.integers(min_value=1, max_value=2**63 - 1))
def test_a_version_survives_its_name_in_the_index(model: str, version: int) -> None:
    assert version_of(member_of((model, version))) == (model, version)
