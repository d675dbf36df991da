"""The flag --cache-config, as Triton writes it. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

_LOCAL: Final = "local"
_REDIS: Final = "redis"
_SIZE: Final = "size"
_LIFETIME: Final = "ttl"
# As Triton's Redis cache has them. The last two are our own.
_REDIS_SETTINGS: Final = (
    "host",
    "port",
    "user",
    "password",
    "tls_enabled",
    "cert",
    "key",
    "cacert",
    "cacert_dir",
    _SIZE,
    _LIFETIME,
)
# Several settings in one flag: a comma, then a name and "=".
_NEXT_SETTING: Final = re.compile(r",(?=[a-z_]+=)")
_DEFAULT_REDIS_BYTES: Final = 256 << 20
_DEFAULT_LIFETIME_S: Final = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisCache:
    """A response cache in Redis, shared by all routers.

    Attributes:
        size_bytes: Of all responses together.
        lifetime_s: How long one is kept.
        connection: Settings by name; none: control's own Redis.
    """

    size_bytes: int = _DEFAULT_REDIS_BYTES
    lifetime_s: int = _DEFAULT_LIFETIME_S
    connection: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Where responses are kept; by default nowhere.

    Attributes:
        local_bytes: How large the cache in each router may grow; 0: there is none.
        redis: The shared one, if there is one.
    """

    local_bytes: int = 0
    redis: RedisCache | None = None


def read_cache_config(flags: Iterable[str]) -> CacheConfig:
    """Read the flags.

    Args:
        flags: Each ``CACHE,KEY=VALUE``, or with several settings; of one key the
            last counts.

    Raises:
        ValueError: another cache, or two of them, another key, or a value that is
            none.
    """
    settings: dict[str, dict[str, str]] = {}
    for flag in flags:
        cache, *pairs = _NEXT_SETTING.split(flag)
        if not pairs:
            raise ValueError(f"'{flag}' is not of the form CACHE,KEY=VALUE")
        if cache not in {_LOCAL, _REDIS}:
            raise ValueError(f"there is no cache '{cache}', only 'local' and 'redis'")
        known = (_SIZE,) if cache == _LOCAL else _REDIS_SETTINGS
        for pair in pairs:
            key, _, value = pair.partition("=")
            if key not in known:
                raise ValueError(f"the cache '{cache}' has no setting '{key}'")
            settings.setdefault(cache, {})[key] = value
    if len(settings) > 1:
        raise ValueError("there can be only one cache: 'local' or 'redis'")
    if _REDIS in settings:
        return CacheConfig(redis=_redis(settings[_REDIS]))
    local = settings.get(_LOCAL)
    return CacheConfig(local_bytes=_number(local[_SIZE], _SIZE) if local else 0)


def _redis(settings: dict[str, str]) -> RedisCache:
    size = settings.pop(_SIZE, str(_DEFAULT_REDIS_BYTES))
    lifetime = settings.pop(_LIFETIME, str(_DEFAULT_LIFETIME_S))
    if settings and not {"host", "port"} <= settings.keys():
        raise ValueError("the cache 'redis' needs a host and a port")
    if "port" in settings:
        _number(settings["port"], "port")
    return RedisCache(
        size_bytes=_number(size, _SIZE),
        lifetime_s=_number(lifetime, _LIFETIME),
        connection=settings,
    )


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError(f"the {name} of the cache is a number > 0, not '{text}'")
    return int(text)
