"""Responses that routers share, in Redis: bounded, and never waited for long.

Entries expire, and those that were used longest ago go when all together are too
large: by a budget of our own, since Redis's ``maxmemory`` would let go of statistics
as well. The scripts name keys that are not in KEYS: no Redis Cluster.
"""

import os
import time
from typing import Final

import redis.asyncio
import redis.asyncio.retry
import redis.backoff
import redis.exceptions
import structlog

from services.control.statistics_keys import SCHEMA
from services.core.cache_config import RedisCache

_log = structlog.get_logger(__name__)

_PREFIX: Final = f"{SCHEMA}:responses:".encode()
# By the time of the last use; the size of each; the size of all.
_USED_KEY: Final = _PREFIX + b"used"
_SIZES_KEY: Final = _PREFIX + b"sizes"
_TOTAL_KEY: Final = _PREFIX + b"bytes"
# What an entry costs beside its bytes: keys in three places.
_ENTRY_BYTES: Final = 512
_TIMEOUT_S: Final = 0.05

_FIND: Final = """
local value = redis.call('GET', KEYS[1])
if value then redis.call('ZADD', KEYS[2], ARGV[1], KEYS[1]) end
return value
"""
_INSERT: Final = """
local function forget(key)
  local size = redis.call('HGET', KEYS[3], key)
  redis.call('DEL', key)
  redis.call('ZREM', KEYS[2], key)
  if size then
    redis.call('HDEL', KEYS[3], key)
    redis.call('DECRBY', KEYS[4], size)
  end
end
forget(KEYS[1])
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[4])
redis.call('ZADD', KEYS[2], ARGV[1], KEYS[1])
redis.call('HSET', KEYS[3], KEYS[1], ARGV[3])
local total = redis.call('INCRBY', KEYS[4], ARGV[3])
local evicted = 0
while total > tonumber(ARGV[5]) do
  local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  if not oldest then break end
  forget(oldest)
  evicted = evicted + 1
  total = tonumber(redis.call('GET', KEYS[4]))
end
return evicted
"""


class ResponsesAwayError(Exception):
    """Redis does not answer, or not in time."""


class ResponseStore:
    """Responses by key; a slow Redis is as good as none."""

    def __init__(
        self, url: str, cache: RedisCache, *, timeout_s: float = _TIMEOUT_S
    ) -> None:
        """Dial when first needed.

        Args:
            url: Of control's own Redis, unless ``cache`` names another.
            cache: How much is kept, and where.
            timeout_s: How long an answer is waited for.
        """
        self._cache = cache
        self._client = _client(url, cache.connection, timeout_s)
        self._find = self._client.register_script(_FIND)
        self._insert = self._client.register_script(_INSERT)

    async def find(self, key: bytes) -> bytes | None:
        """Return what was kept.

        Raises:
            ResponsesAwayError: nobody knows.
        """
        try:
            found: bytes | None = await self._find(
                keys=[_PREFIX + key, _USED_KEY], args=[time.time_ns()]
            )
        except (redis.exceptions.RedisError, OSError) as error:
            raise ResponsesAwayError(str(error)) from error
        return found

    async def insert(self, key: bytes, value: bytes) -> int:
        """Keep ``value``, unless it is larger than all may be.

        Returns:
            How many others had to go.

        Raises:
            ResponsesAwayError: it may or may not be kept.
        """
        cache, size = self._cache, len(value) + _ENTRY_BYTES
        if size > cache.size_bytes:
            return 0
        keys = [_PREFIX + key, _USED_KEY, _SIZES_KEY, _TOTAL_KEY]
        args: list[int | bytes] = [
            time.time_ns(),
            value,
            size,
            cache.lifetime_s,
            cache.size_bytes,
        ]
        try:
            return int(await self._insert(keys=keys, args=args))
        except (redis.exceptions.RedisError, OSError) as error:
            raise ResponsesAwayError(str(error)) from error

    async def close(self) -> None:
        """Hang up."""
        await self._client.aclose()


def _client(
    url: str, connection: dict[str, str], timeout_s: float
) -> "redis.asyncio.Redis":
    if not connection:
        return redis.asyncio.Redis.from_url(
            url,
            retry=_no_retry(),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
        )
    return redis.asyncio.Redis(
        host=connection["host"],
        port=int(connection["port"]),
        username=connection.get("user") or os.environ.get("TRITONCACHE_REDIS_USERNAME"),
        password=connection.get("password")
        or os.environ.get("TRITONCACHE_REDIS_PASSWORD"),
        ssl=connection.get("tls_enabled", "false").lower() == "true",
        ssl_certfile=connection.get("cert"),
        ssl_keyfile=connection.get("key"),
        ssl_ca_certs=connection.get("cacert"),
        ssl_ca_path=connection.get("cacert_dir"),
        retry=_no_retry(),
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
    )


def _no_retry() -> redis.asyncio.retry.Retry:
    """Return the rule to fail at once: the model is asked instead."""
    return redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0)
