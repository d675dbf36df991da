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

from services.control.snapshot import Snapshot, from_fields, to_fields

_log = structlog.get_logger(__name__)

# Keys, all of them. The number is the schema's: readers of another one see nothing.
SCHEMA: Final = "nereid:1"
EPOCH_KEY: Final = f"{SCHEMA}:control:epoch"
SNAPSHOT_KEY: Final = f"{SCHEMA}:control:snapshot"

_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 5.0
_TIMEOUT_S: Final = 2.0

_AWAY: Final = (redis.exceptions.RedisError, OSError)


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

    async def run(self) -> None:
        """Write what is saved, until cancelled."""
        ...

    async def close(self) -> None:
        """Write the last snapshot if that is possible now, and hang up."""
        ...


class NoStore:
    """Remembers nothing: no Redis was given."""

    async def begin_epoch(self, at_least: int) -> int:
        """Return ``at_least``."""
        return at_least

    async def restore(self) -> Snapshot:
        """Return an empty snapshot."""
        return Snapshot()

    def save(self, snapshot: Snapshot) -> None:
        """Forget it."""

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
        self._unwritten: Snapshot | None = None
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
            return at_least
        return epoch

    async def restore(self) -> Snapshot:
        """Return the newest snapshot; an empty one if none can be read."""
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

    async def _write(self) -> None:
        snapshot = self._unwritten
        if snapshot is None:
            return
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.delete(SNAPSHOT_KEY)
            for name, value in to_fields(snapshot).items():
                pipeline.hset(SNAPSHOT_KEY, name, value)
            await pipeline.execute()
        if self._unwritten is snapshot:
            self._unwritten = None
            self._has_unwritten.clear()
