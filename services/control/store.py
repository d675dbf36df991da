"""Control's memory in Redis: the only module that imports redis.

Nothing waits for it: the newest snapshot is written as soon as Redis takes it, and
while Redis is away control goes on with what it knows.
"""

import asyncio
import contextlib
from typing import Final, Never, Protocol

import redis.asyncio
import redis.exceptions
import structlog

from services.control.model_registry import VersionKey
from services.control.snapshot import Snapshot, from_fields, to_fields
from services.control.statistics_keys import (
    APPLY_SCRIPT,
    INDEX_KEY,
    SCHEMA,
    hash_key,
    script_arguments,
    totals_from,
    version_of,
)
from services.control.statistics_totals import Counted, StatisticsReport, sum_of

_log = structlog.get_logger(__name__)

# The keys of statistics are in services.control.statistics_keys.
EPOCH_KEY: Final = f"{SCHEMA}:control:epoch"
SNAPSHOT_KEY: Final = f"{SCHEMA}:control:snapshot"
# A hash: what clients have changed, by what it concerns.
SETTINGS_KEY: Final = f"{SCHEMA}:control:settings"
# The prefix of the states of sequences, a string each, which expire.
STATE_PREFIX: Final = f"{SCHEMA}:state:"
# A hash: what models count themselves, see services.control.model_metrics_text.
METRICS_KEY: Final = f"{SCHEMA}:control:model_metrics"

_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 5.0
_TIMEOUT_S: Final = 2.0

_AWAY: Final = (redis.exceptions.RedisError, OSError)


class StoreAwayError(Exception):
    """The store does not answer; what was asked for may or may not have happened."""


class Store(Protocol):
    """Where control remembers."""

    async def begin_epoch(self, at_least: int) -> int:
        """Return a number higher than any returned before, >= ``at_least``."""
        ...

    async def restore(self) -> Snapshot:
        """Return the newest snapshot; an empty one if there is none."""
        ...

    def save(self, snapshot: Snapshot) -> None:
        """Have ``snapshot`` written soon; a later one may take its place."""
        ...

    async def restore_settings(self) -> dict[str, str]:
        """Return what clients have changed, by name; nothing if it can't be read."""
        ...

    def save_setting(self, name: str, text: str) -> None:
        """Have ``text`` written soon; a later one may take its place."""
        ...

    async def metrics(self) -> dict[str, str]:
        """Return what is stored of models' own metrics, by name.

        Raises:
            StoreAwayError: nothing can be read.
        """
        ...

    def save_metrics(self, name: str, text: str) -> None:
        """Have ``text`` written soon, or ``name`` forgotten if it is ""."""
        ...

    async def save_state(self, key: str, data: bytes, expires_ms: int) -> None:
        """Keep the state of a sequence, or forget it if ``data`` is empty.

        Raises:
            StoreAwayError: try again.
        """
        ...

    async def state(self, key: str) -> bytes:
        """Return the state of a sequence; b"" if none is kept.

        Raises:
            StoreAwayError: nothing can be read.
        """
        ...

    async def apply(self, reporter: str, report: StatisticsReport) -> bool:
        """Add what ``report`` counts; False if that had been done before.

        Raises:
            StoreAwayError: try again.
        """
        ...

    async def totals(self) -> dict[VersionKey, Counted]:
        """Return all statistics.

        Raises:
            StoreAwayError: nothing can be read.
        """
        ...

    async def reset(self, model: str) -> tuple[int, ...]:
        """Forget the statistics of a model's versions; return which it had.

        Raises:
            StoreAwayError: they may or may not be forgotten.
        """
        ...

    async def run(self) -> None:
        """Write what is saved, until cancelled."""
        ...

    async def close(self) -> None:
        """Write the last snapshot if that is possible now, and hang up."""
        ...


class NoStore:
    """Remembers statistics and states as long as it lives, nothing else: no Redis."""

    def __init__(self) -> None:
        """Begin without statistics."""
        self._totals: dict[VersionKey, Counted] = {}
        self._sequences: dict[str, int] = {}
        # With the monotonic time, in seconds, at which each has expired.
        self._states: dict[str, tuple[float, bytes]] = {}

    async def begin_epoch(self, at_least: int) -> int:
        """Return ``at_least``."""
        return at_least

    async def restore(self) -> Snapshot:
        """Return an empty snapshot."""
        return Snapshot()

    def save(self, snapshot: Snapshot) -> None:
        """Forget it."""

    async def restore_settings(self) -> dict[str, str]:
        """Return nothing."""
        return {}

    def save_setting(self, name: str, text: str) -> None:
        """Forget it."""

    async def metrics(self) -> dict[str, str]:
        """Return nothing."""
        return {}

    def save_metrics(self, name: str, text: str) -> None:
        """Forget it."""

    async def save_state(self, key: str, data: bytes, expires_ms: int) -> None:
        """Keep the state of a sequence, or forget it if ``data`` is empty."""
        now_s = asyncio.get_running_loop().time()
        self._states.pop(key, None)
        if data:
            self._states[key] = (now_s + expires_ms / 1000, data)
        for old in [k for k, (end_s, _) in self._states.items() if end_s <= now_s]:
            del self._states[old]

    async def state(self, key: str) -> bytes:
        """Return the state of a sequence; b"" if none is kept."""
        return self._states.get(key, (0.0, b""))[1]

    async def apply(self, reporter: str, report: StatisticsReport) -> bool:
        """Add what ``report`` counts; False if that had been done before."""
        if report.sequence <= self._sequences.get(reporter, 0):
            return False
        self._sequences[reporter] = report.sequence
        self._totals = sum_of((self._totals, report.increments))
        return True

    async def totals(self) -> dict[VersionKey, Counted]:
        """Return all statistics."""
        return dict(self._totals)

    async def reset(self, model: str) -> tuple[int, ...]:
        """Forget the statistics of a model's versions; return which it had."""
        gone = sorted(key for key in self._totals if key[0] == model)
        for key in gone:
            del self._totals[key]
        return tuple(version for _, version in gone)

    async def run(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class RedisStore:
    """A store in Redis or Valkey."""

    def __init__(self, url: str) -> None:
        """Dial ``url`` when first needed: redis://, rediss:// or unix://."""
        self._client = redis.asyncio.Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
        )
        # States are bytes of any kind.
        self._states = redis.asyncio.Redis.from_url(
            url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )
        self._apply_script = self._client.register_script(APPLY_SCRIPT)
        # It was not there when this process began: it is not waited for again.
        self._was_away = False
        self._unwritten: Snapshot | None = None
        # By key of a hash and name in it; "" is to be deleted.
        self._unwritten_texts: dict[tuple[str, str], str] = {}
        self._has_unwritten = asyncio.Event()

    async def begin_epoch(self, at_least: int) -> int:
        """Return a number higher than any returned before, >= ``at_least``.

        While Redis is away this is ``at_least``, which is good enough if it is
        the time.
        """
        try:
            last = int(await self._client.get(EPOCH_KEY) or 0)
            epoch = max(last + 1, at_least)
            await self._client.set(EPOCH_KEY, epoch)
        except _AWAY as error:
            _log.warning("the store is away; starting without it", reason=str(error))
            self._was_away = True
            return at_least
        return epoch

    async def restore(self) -> Snapshot:
        """Return the newest snapshot; an empty one if none can be read."""
        if self._was_away:
            return Snapshot()
        try:
            fields = await self._client.hgetall(SNAPSHOT_KEY)
            return from_fields({str(key): str(fields[key]) for key in fields})
        except _AWAY as error:
            _log.warning("the store is away; nothing restored", reason=str(error))
        except ValueError as error:
            _log.warning("the stored snapshot is unreadable", reason=str(error))
        return Snapshot()

    def save(self, snapshot: Snapshot) -> None:
        """Have ``snapshot`` written soon; a later one may take its place."""
        self._unwritten = snapshot
        self._has_unwritten.set()

    async def restore_settings(self) -> dict[str, str]:
        """Return what clients have changed, by name; nothing if it can't be read."""
        if self._was_away:
            return {}
        try:
            fields = await self._client.hgetall(SETTINGS_KEY)
        except _AWAY as error:
            _log.warning("the store is away; no settings", reason=str(error))
            return {}
        return {str(name): str(text) for name, text in fields.items()}

    def save_setting(self, name: str, text: str) -> None:
        """Have ``text`` written soon; a later one may take its place."""
        self._save_text(SETTINGS_KEY, name, text)

    async def metrics(self) -> dict[str, str]:
        """Return what is stored of models' own metrics, by name.

        Raises:
            StoreAwayError: nothing can be read.
        """
        try:
            fields = await self._client.hgetall(METRICS_KEY)
        except _AWAY as error:
            raise StoreAwayError(str(error)) from error
        return {str(name): str(text) for name, text in fields.items()}

    def save_metrics(self, name: str, text: str) -> None:
        """Have ``text`` written soon, or ``name`` forgotten if it is ""."""
        self._save_text(METRICS_KEY, name, text)

    async def save_state(self, key: str, data: bytes, expires_ms: int) -> None:
        """Keep the state of a sequence, or forget it if ``data`` is empty.

        Raises:
            StoreAwayError: try again.
        """
        try:
            if data:
                await self._states.set(STATE_PREFIX + key, data, px=expires_ms)
            else:
                await self._states.delete(STATE_PREFIX + key)
        except _AWAY as error:
            raise StoreAwayError(str(error)) from error

    async def state(self, key: str) -> bytes:
        """Return the state of a sequence; b"" if none is kept.

        Raises:
            StoreAwayError: nothing can be read.
        """
        try:
            found = await self._states.get(STATE_PREFIX + key)
        except _AWAY as error:
            raise StoreAwayError(str(error)) from error
        return found if isinstance(found, bytes) else b""

    def _save_text(self, key: str, name: str, text: str) -> None:
        self._unwritten_texts[key, name] = text
        self._has_unwritten.set()

    async def apply(self, reporter: str, report: StatisticsReport) -> bool:
        """Add what ``report`` counts; False if that had been done before.

        Raises:
            StoreAwayError: try again.
        """
        keys, arguments = script_arguments(reporter, report.sequence, report.increments)
        try:
            return bool(await self._apply_script(keys=keys, args=arguments))
        except _AWAY as error:
            raise StoreAwayError(str(error)) from error

    async def totals(self) -> dict[VersionKey, Counted]:
        """Return all statistics.

        Raises:
            StoreAwayError: nothing can be read.
        """
        try:
            members = await self._members()
            async with self._client.pipeline(transaction=False) as pipeline:
                for member in members:
                    pipeline.hgetall(hash_key(member))
                return totals_from(members, await pipeline.execute())
        except _AWAY as error:
            raise StoreAwayError(str(error)) from error

    async def reset(self, model: str) -> tuple[int, ...]:
        """Forget the statistics of a model's versions; return which it had.

        Raises:
            StoreAwayError: they may or may not be forgotten.
        """
        try:
            gone = [m for m in await self._members() if version_of(m)[0] == model]
            async with self._client.pipeline(transaction=True) as pipeline:
                for member in gone:
                    pipeline.srem(INDEX_KEY, member)
                    pipeline.delete(hash_key(member))
                await pipeline.execute()
        except _AWAY as error:
            raise StoreAwayError(str(error)) from error
        return tuple(version for _, version in map(version_of, gone))

    async def _members(self) -> list[str]:
        """Return the names of all versions that have statistics, by model."""
        members = map(str, await self._client.smembers(INDEX_KEY))
        return sorted(members, key=version_of)

    async def run(self) -> Never:
        """Write what is saved, again and again while Redis is away."""
        delay_s = _FIRST_DELAY_S
        while True:
            await self._has_unwritten.wait()
            try:
                await self._write()
            except _AWAY as error:
                if delay_s == _FIRST_DELAY_S:
                    _log.warning("the store is away", reason=str(error))
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
            else:
                delay_s = _FIRST_DELAY_S

    async def close(self) -> None:
        """Write the last snapshot if that is possible now, and hang up."""
        with contextlib.suppress(*_AWAY):
            await self._write()
        await self._client.aclose()
        await self._states.aclose()

    async def _write(self) -> None:
        snapshot = self._unwritten
        texts = dict(self._unwritten_texts)
        if snapshot is None and not texts:
            return
        async with self._client.pipeline(transaction=True) as pipeline:
            if snapshot is not None:
                pipeline.delete(SNAPSHOT_KEY)
                for name, value in to_fields(snapshot).items():
                    pipeline.hset(SNAPSHOT_KEY, name, value)
            for (key, name), text in texts.items():
                if text:
                    pipeline.hset(key, name, text)
                else:
                    pipeline.hdel(key, name)
            await pipeline.execute()
        if self._unwritten is snapshot:
            self._unwritten = None
        for field, text in texts.items():
            if self._unwritten_texts.get(field) == text:
                del self._unwritten_texts[field]
        if self._unwritten is None and not self._unwritten_texts:
            self._has_unwritten.clear()
